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


class Source:
    def __init__(self, found=None):
        self.found, self.asked = found, []

    def fetch(self, table, key, columns):
        self.asked.append((table.namespace, dict(key), list(columns)))
        return self.found


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def changes(source):
    made = Changes([FLIGHTS], base_type=lambda oid: oid, fetch=source.fetch)
    for each in (Begin(1, 1_000, 5), RELATION, OTHER):
        assert made.take(each) == ()
    return made


def taken(changes, change):
    return [(message.op, message.data) for message in changes.take(change)]


def test_rows_come_with_their_transactions_time(changes):
    (message,) = changes.take(Insert(7, ["1", "a"]))
    assert message == (Op.INSERT, 1_000, "public.flights", {"id": 1, "note": "a"}, Mode.SYNC, -1)


def test_where_to_go_on_is_said_once_a_transaction_has_ended(changes):
    assert changes.is_open
    assert changes.end == 0
    changes.take(Commit(90, 100, 1_000))
    assert not changes.is_open
    assert changes.end == 100


def test_updates_and_deletes(changes):
    assert taken(changes, Update(7, None, False, ["1", None])) == [(Op.UPDATE, {"id": 1, "note": None})]  # noqa: FBT003 - as decoded
    assert taken(changes, Delete(7, ["1", None], old_is_key=True)) == [(Op.DELETE, {"id": 1})]
    assert taken(changes, Delete(7, ["1", "a"], old_is_key=False)) == [(Op.DELETE, {"id": 1, "note": "a"})]


@pytest.mark.parametrize("is_key", [True, False], ids=["key", "full row"])
def test_a_key_that_changes_is_a_delete_and_an_insert(changes, is_key):
    gone, new = taken(changes, Update(7, ["1", None if is_key else "a"], is_key, ["2", "a"]))
    assert gone == (Op.DELETE, {"id": 1} if is_key else {"id": 1, "note": "a"})
    assert new == (Op.INSERT, {"id": 2, "note": "a"})


def test_a_full_row_whose_key_stays_is_an_update(changes):
    assert taken(changes, Update(7, ["1", "a"], old_is_key=False, new=["1", "b"])) == [
        (Op.UPDATE, {"id": 1, "note": "b"})
    ]


def test_a_large_value_that_was_left_alone_is_asked_for(changes, source):
    source.found = {"note": "long"}
    assert taken(changes, Update(7, None, old_is_key=False, new=["1", UNCHANGED])) == [
        (Op.UPDATE, {"id": 1, "note": "long"})
    ]
    assert source.asked == [("public.flights", {"id": "1"}, ["note"])]


def test_a_large_value_that_the_old_row_has_is_not_asked_for(changes, source):
    assert taken(changes, Update(7, ["1", "long"], old_is_key=False, new=["1", UNCHANGED])) == [
        (Op.UPDATE, {"id": 1, "note": "long"})
    ]
    assert not source.asked


def test_an_update_of_a_row_that_is_gone_by_now_is_left_out(changes):
    assert taken(changes, Update(7, None, old_is_key=False, new=["1", UNCHANGED])) == []
    moved = Update(7, ["1", None], old_is_key=True, new=["2", UNCHANGED])
    assert taken(changes, moved) == [(Op.DELETE, {"id": 1})]


LONG = "x" * 3_000
COMPOSITE = RELATION._replace(
    columns=[*RELATION.columns[:1], Column("uid", 25, -1, is_key=True), Column("note", 25, -1, is_key=False)]
)


def test_a_large_part_of_a_key_that_was_left_alone_comes_with_the_old_key(changes, source):
    changes.take(COMPOSITE)
    kept = Update(7, ["1", LONG, None], old_is_key=True, new=["1", UNCHANGED, "b"])
    assert taken(changes, kept) == [(Op.UPDATE, {"id": 1, "uid": LONG, "note": "b"})]
    moved = Update(7, ["1", LONG, None], old_is_key=True, new=["2", UNCHANGED, "b"])
    assert taken(changes, moved) == [
        (Op.DELETE, {"id": 1, "uid": LONG}),
        (Op.INSERT, {"id": 2, "uid": LONG, "note": "b"}),
    ]
    source.found = {"note": "c"}
    kept = Update(7, ["1", LONG, None], old_is_key=True, new=["1", UNCHANGED, UNCHANGED])
    assert taken(changes, kept) == [(Op.UPDATE, {"id": 1, "uid": LONG, "note": "c"})]
    assert source.asked == [("public.flights", {"id": "1", "uid": LONG}, ["note"])]


@pytest.mark.parametrize(
    "change",
    [
        Update(7, None, old_is_key=False, new=["1", UNCHANGED, "b"]),
        Update(7, ["1", UNCHANGED, None], old_is_key=True, new=["1", UNCHANGED, "b"]),
        Update(7, ["1", UNCHANGED, None], old_is_key=True, new=["2", LONG, "b"]),
        Update(7, ["1", UNCHANGED, "a"], old_is_key=False, new=["1", LONG, "b"]),
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


def test_a_column_of_the_key_that_is_called_otherwise_is_an_error(changes):
    changes.take(RELATION._replace(columns=[Column("number", 23, -1, is_key=True)], identity="f"))
    with pytest.raises(AdaptorError, match="without all that names its row"):
        changes.take(Update(7, ["1"], old_is_key=False, new=["1"]))


def test_emptied_tables_are_commands_and_other_tables_are_left_alone(changes):
    emptied = Truncate([7, 8], cascades=False, restarts_sequences=False)
    assert taken(changes, emptied) == [(Op.COMMAND, {"command": "truncate"})]
    assert taken(changes, Insert(8, ["1"])) == []
    assert taken(changes, Other("O")) == []


def test_a_column_that_is_added_comes_from_the_next_change_on(changes):
    wider = RELATION._replace(columns=[*RELATION.columns, Column("late", 16, -1, is_key=False)])
    changes.take(wider)
    assert taken(changes, Insert(7, ["1", "a", "t"])) == [(Op.INSERT, {"id": 1, "note": "a", "late": True})]


def test_a_table_that_is_renamed_keeps_its_namespace(changes):
    changes.take(RELATION._replace(schema="attic", name="old_flights"))
    (message,) = changes.take(Insert(7, ["1", "a"]))
    assert message.namespace == "public.flights"


def test_another_table_of_the_same_name_is_an_error(changes):
    with pytest.raises(PositionLost, match=r"public\.flights is not the table") as error:
        changes.take(OTHER._replace(name="flights"))
    assert "relation 8" in error.value.evidence


def test_what_names_a_row_is_what_did_when_it_was_changed(changes, source):
    columns = [Column("uid", 23, -1, is_key=True), Column("note", 25, -1, is_key=False)]
    changes.take(RELATION._replace(columns=columns))
    assert taken(changes, Delete(7, ["1", None], old_is_key=True)) == [(Op.DELETE, {"uid": 1})]
    assert taken(changes, Update(7, ["1", None], True, ["2", "a"])) == [  # noqa: FBT003 - as decoded
        (Op.DELETE, {"uid": 1}),
        (Op.INSERT, {"uid": 2, "note": "a"}),
    ]
    changes.take(RELATION._replace(columns=columns, identity="i"))
    assert taken(changes, Delete(7, ["1", None], old_is_key=True)) == [(Op.DELETE, {"uid": 1})]
    source.found = {"note": "long"}
    changes.take(Update(7, None, old_is_key=False, new=["1", UNCHANGED]))
    assert source.asked == [("public.flights", {"uid": "1"}, ["note"])]


def test_a_full_row_is_told_by_the_tables_key(changes):
    columns = [each._replace(is_key=True) for each in RELATION.columns]  # as Postgres marks them then
    changes.take(RELATION._replace(columns=columns, identity="f"))
    assert taken(changes, Update(7, ["1", "a"], old_is_key=False, new=["1", "b"])) == [
        (Op.UPDATE, {"id": 1, "note": "b"})
    ]


def test_a_large_value_of_a_column_that_is_gone_is_left_out_and_the_others_come(changes, source):
    source.found = {}
    assert taken(changes, Update(7, None, old_is_key=False, new=["1", UNCHANGED])) == [(Op.UPDATE, {"id": 1})]


def test_a_table_that_was_not_described_is_an_error(changes):
    with pytest.raises(AdaptorError, match="had not described"):
        changes.take(Insert(9, ["1"]))
