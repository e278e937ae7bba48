"""Messages of decoded changes: one for each row, and a part of a row that was not sent is asked for."""

import pytest

from harvest_lib.errors import AdaptorError, PositionLost
from harvest_lib.pipeline.adaptors.postgres.catalog import Table
from harvest_lib.pipeline.adaptors.postgres.changes import Changes
from harvest_lib.pipeline.adaptors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Other,
    Relation,
    Truncate,
    Update,
)
from harvest_lib.pipeline.message import Mode, Op

pytestmark = pytest.mark.quick

FLIGHTS = Table(
    oid=7, membership=9, schema="public", name="flights", columns={"id": 23, "note": 25}, key=["id"], row_filter=None
)
RELATION = Relation(
    7, "public", "flights", "d", [Column("id", 23, -1, is_key=True), Column("note", 25, -1, is_key=False)]
)
OTHER = Relation(8, "public", "other", "d", [Column("id", 23, -1, is_key=True)])
LONG = "x" * 3_000
COMPOSITE = RELATION._replace(
    columns=[*RELATION.columns[:1], Column("uid", 25, -1, is_key=True), Column("note", 25, -1, is_key=False)]
)
WIDER = RELATION._replace(columns=[*RELATION.columns, Column("late", 16, -1, is_key=False)])
REKEYED = RELATION._replace(columns=[Column("uid", 23, -1, is_key=True), Column("note", 25, -1, is_key=False)])
FULL = RELATION._replace(columns=[each._replace(is_key=True) for each in RELATION.columns], identity="f")
"""A table whose identity is the full row: Postgres marks all columns then."""


class Source:
    def __init__(self, found=None):
        self.found, self.asked, self.key = found, [], ["id"]

    def fetch(self, table, key, columns):
        self.asked.append((table.namespace, dict(key), list(columns)))
        return self.found


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def changes(source):
    made = Changes([FLIGHTS], base_type=lambda oid: oid, key_of=lambda oid: source.key, fetch=source.fetch)
    for each in (Begin(1, 1_000, 5), RELATION, OTHER):
        assert made.take(each) == ()
    return made


def taken(changes, change):
    return [(message.op, message.data) for message in changes.take(change)]


@pytest.mark.parametrize("relation", [RELATION, RELATION._replace(schema="attic", name="old_flights")])
def test_rows_come_with_their_transactions_time_and_a_namespace_that_stays(changes, relation):
    changes.take(relation)
    (message,) = changes.take(Insert(7, ["1", "a"]))
    assert message == (Op.INSERT, 1_000, "public.flights", {"id": 1, "note": "a"}, Mode.SYNC, -1)


def test_where_to_go_on_is_said_once_a_transaction_has_ended(changes):
    assert changes.is_open
    assert changes.end == 0
    changes.take(Commit(90, 100, 1_000))
    assert not changes.is_open
    assert changes.end == 100


def updated(old, new, *, is_key):
    return Update(7, old, old_is_key=is_key, new=new)


@pytest.mark.parametrize(
    ("relation", "change", "expected"),
    [
        (RELATION, updated(None, ["1", None], is_key=False), [(Op.UPDATE, {"id": 1, "note": None})]),
        (RELATION, Delete(7, ["1", None], old_is_key=True), [(Op.DELETE, {"id": 1})]),
        (RELATION, Delete(7, ["1", "a"], old_is_key=False), [(Op.DELETE, {"id": 1, "note": "a"})]),
        # a key that changes
        (
            RELATION,
            updated(["1", None], ["2", "a"], is_key=True),
            [(Op.DELETE, {"id": 1}), (Op.INSERT, {"id": 2, "note": "a"})],
        ),
        (
            RELATION,
            updated(["1", "a"], ["2", "a"], is_key=False),
            [(Op.DELETE, {"id": 1, "note": "a"}), (Op.INSERT, {"id": 2, "note": "a"})],
        ),
        (RELATION, updated(["1", "a"], ["1", "b"], is_key=False), [(Op.UPDATE, {"id": 1, "note": "b"})]),
        # a large value that the old row has, and a large part of a key that the old key has
        (RELATION, updated(["1", LONG], ["1", UNCHANGED], is_key=False), [(Op.UPDATE, {"id": 1, "note": LONG})]),
        (
            COMPOSITE,
            updated(["1", LONG, None], ["1", UNCHANGED, "b"], is_key=True),
            [(Op.UPDATE, {"id": 1, "uid": LONG, "note": "b"})],
        ),
        (
            COMPOSITE,
            updated(["1", LONG, None], ["2", UNCHANGED, "b"], is_key=True),
            [(Op.DELETE, {"id": 1, "uid": LONG}), (Op.INSERT, {"id": 2, "uid": LONG, "note": "b"})],
        ),
        # emptied tables, tables that are not wanted, what changes no row
        (RELATION, Truncate([7, 8], cascades=False, restarts_sequences=False), [(Op.COMMAND, {"command": "truncate"})]),
        (RELATION, Insert(8, ["1"]), []),
        (RELATION, Other("O"), []),
        # a table as it was when the change was made
        (WIDER, Insert(7, ["1", "a", "t"]), [(Op.INSERT, {"id": 1, "note": "a", "late": True})]),
        (REKEYED, Delete(7, ["1", None], old_is_key=True), [(Op.DELETE, {"uid": 1})]),
        (
            REKEYED,
            updated(["1", None], ["2", "a"], is_key=True),
            [(Op.DELETE, {"uid": 1}), (Op.INSERT, {"uid": 2, "note": "a"})],
        ),
        (REKEYED._replace(identity="i"), Delete(7, ["1", None], old_is_key=True), [(Op.DELETE, {"uid": 1})]),
        (FULL, updated(["1", "a"], ["1", "b"], is_key=False), [(Op.UPDATE, {"id": 1, "note": "b"})]),
    ],
)
def test_a_change_is_a_message_of_each_row_and_asks_for_nothing(changes, source, relation, change, expected):
    changes.take(relation)
    assert taken(changes, change) == expected
    assert not source.asked


@pytest.mark.parametrize(
    ("relation", "change", "found", "expected"),
    [
        (RELATION, updated(None, ["1", UNCHANGED], is_key=False), {"note": "l"}, [(Op.UPDATE, {"id": 1, "note": "l"})]),
        (
            COMPOSITE,
            updated(["1", LONG, None], ["1", UNCHANGED, UNCHANGED], is_key=True),
            {"note": "c"},
            [(Op.UPDATE, {"id": 1, "uid": LONG, "note": "c"})],
        ),
        (
            REKEYED._replace(identity="i"),
            updated(None, ["1", UNCHANGED], is_key=False),
            {"note": "l"},
            [(Op.UPDATE, {"uid": 1, "note": "l"})],
        ),
        # a row that is gone by now is left out, a column that is gone alone
        (RELATION, updated(None, ["1", UNCHANGED], is_key=False), None, []),
        (RELATION, updated(["1", None], ["1", UNCHANGED], is_key=True), None, []),
        (RELATION, updated(["2", None], ["1", UNCHANGED], is_key=True), None, [(Op.DELETE, {"id": 2})]),
        (RELATION, updated(None, ["1", UNCHANGED], is_key=False), {}, [(Op.UPDATE, {"id": 1})]),
    ],
)
def test_a_large_value_that_was_not_sent_is_asked_for_by_the_key(changes, source, relation, change, found, expected):
    source.found = found
    changes.take(relation)
    assert taken(changes, change) == expected
    key = {"uid": "1"} if relation.columns[0].name == "uid" else {"id": "1"}
    if relation is COMPOSITE:
        key["uid"] = LONG
    assert source.asked == [("public.flights", key, ["note"])]


@pytest.mark.parametrize(
    "change",
    [
        updated(None, ["1", UNCHANGED, "b"], is_key=False),
        updated(["1", UNCHANGED, None], ["1", UNCHANGED, "b"], is_key=True),
        updated(["1", UNCHANGED, None], ["2", LONG, "b"], is_key=True),
        updated(["1", UNCHANGED, "a"], ["1", LONG, "b"], is_key=False),
        Delete(7, ["1", UNCHANGED, None], old_is_key=True),
        Delete(7, ["1", UNCHANGED, "a"], old_is_key=False),
    ],
)
def test_a_change_without_all_of_its_key_is_refused_and_asks_for_no_row(changes, source, change):
    changes.take(COMPOSITE)
    with pytest.raises(AdaptorError, match="without all that names its row") as error:
        changes.take(change)
    assert error.value.evidence == "not sent: uid"
    assert not source.asked


@pytest.mark.parametrize(
    ("number", "key_now"), [("number", ["id"]), ("number", ["number"]), ("id", ["note"]), ("id", [])]
)
def test_a_full_row_whose_key_cannot_be_told_is_replaced(changes, source, number, key_now):
    source.key = key_now
    changes.take(FULL._replace(columns=[FULL.columns[0]._replace(name=number), FULL.columns[1]]))
    before, after = {number: 1, "note": None}, {number: 1, "note": "a"}
    assert taken(changes, updated(["1", None], ["1", "a"], is_key=False)) == [(Op.DELETE, before), (Op.INSERT, after)]
    assert taken(changes, updated(["1", "a"], ["1", "a"], is_key=False)) == [(Op.UPDATE, after)]
    large = updated(["1", LONG], ["2", UNCHANGED], is_key=False)
    assert taken(changes, large) == [(Op.DELETE, {number: 1, "note": LONG}), (Op.INSERT, {number: 2, "note": LONG})]
    assert taken(changes, Delete(7, ["1", None], old_is_key=False)) == [(Op.DELETE, before)]
    assert not source.asked


def test_another_table_of_the_same_name_is_an_error(changes):
    with pytest.raises(PositionLost, match=r"public\.flights is not the table") as error:
        changes.take(OTHER._replace(name="flights"))
    assert "relation 8" in error.value.evidence


def test_a_table_that_was_not_described_is_an_error(changes):
    with pytest.raises(AdaptorError, match="had not described"):
        changes.take(Insert(9, ["1"]))
