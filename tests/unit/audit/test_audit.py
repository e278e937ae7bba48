"""Verdicts of the comparison on small logs, and that each of its queries is needed for them."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from harvest_lib.audit import CommittedRecord, ObservedRecord, audit, comparison, queries

pytestmark = pytest.mark.quick

LEADERS = {name: UUID(int=number) for number, name in enumerate("XYZ", start=1)}
TOKEN = re.compile(
    r"(?:(?P<topic>[a-z]+)/)?(?:(?P<partition>\d):)?(?P<key>[a-z-])(?P<id>\d+|\?)(?:@(?P<leader>[XYZ]))?"
)


def log(text):
    """Read `topic/partition:keyID@leader …`: `a1 a2@X 1:b3 -4 a?`; `-` is no key, `?` no id."""
    for offset, token in enumerate(text.split()):
        part = TOKEN.fullmatch(token)
        yield ObservedRecord(
            part["topic"] or "t",
            int(part["partition"] or 0),
            offset,
            1_000 + offset,
            None if part["key"] == "-" else part["key"].encode(),
            None if part["id"] == "?" else int(part["id"]),
            LEADERS[part["leader"]].bytes if part["leader"] else None,
        )


def test_a_record_of_another_content_is_another_record():
    """Of an id that came again: it stands for no delivery, no copy and no step back."""
    committed = [CommittedRecord(1, b"k", b"old"), CommittedRecord(2, b"k", b"new"), CommittedRecord(3, b"k", b"new")]
    seen = [(1, b"old"), (2, b"old"), (3, b"old"), (2, b"new"), (4, b"old")]
    observed = [
        ObservedRecord("t", 0, at, at, b"k", number, None, content) for at, (number, content) in enumerate(seen)
    ]
    report = audit(committed, observed)
    counts = (report.records, report.delivered, report.lost, report.other_contents, report.unknown)
    assert counts == (5, 2, 1, 2, 1)
    assert (report.duplicates, report.reordered, report.order_violations) == (0, 0, 0)
    assert [each.id for each in report.examples["lost"]] == [3]
    assert not report.ok


def test_where_split_keys_went_and_since_when_is_told():
    observed = "0:a1 0:b2 1:c3 5:a4 5:b5 5:a6 1:c7 3:b8 other/0:a9 5:a?"
    report = audit(rows("a1 b2 c3 a4 b5 a6 c7 b8 a9"), log(observed))
    assert report.split_keys == 2
    assert [
        (each.topic, each.partition, each.keys, each.first_ms, each.first_offset) for each in report.moved_keys
    ] == [
        ("t", 3, 1, 1_007, 7),
        ("t", 5, 2, 1_003, 3),
    ]
    assert "2 keys moved to t/5, from 1970-01-01T00:00:01.003+00:00 on, offset 3" in str(report.moved_keys[1])
    assert report.to_json()["moved_keys"][0]["partition"] == 3
    assert audit(rows("a1"), log("0:a1")).moved_keys == ()


def rows(text):
    return [CommittedRecord(r.id, r.key) for r in log(text)]


@dataclass
class Case:
    committed: str
    observed: str
    expected: dict = field(default_factory=dict)
    pending: tuple = ()

    def counts(self):
        """Return the counts that are not zero, except those that only describe the input."""
        report = audit(rows(self.committed), log(self.observed), pending=self.pending)
        assert report.records == len(self.observed.split())
        assert report.committed == len(self.committed.split())
        found = report.to_json()
        described = {"ok", "records", "committed", "explained_duplicates"}
        return {name: n for name, n in found.items() if isinstance(n, int) and n and name not in described}


def doubled(adjacent, separated, *, explained=0, **others):
    counts = {
        "duplicates": adjacent + separated,
        "adjacent_duplicates": adjacent,
        "separated_duplicates": separated,
        "unexplained_duplicates": adjacent + separated - explained,
        **others,
    }
    return {name: count for name, count in counts.items() if count}


CASES = {
    "nothing": Case("", ""),
    "all": Case("a1 b2 a3", "a1 b2 a3", {"delivered": 3}),
    "keys in any order among each other": Case("a1 b2 a3", "b2 a1 a3", {"delivered": 3}),
    "R0 R1 R1 R2": Case("a0 a1 a2", "a0 a1 a1 a2", {"delivered": 3, **doubled(1, 0)}),
    "adjacent in its key only": Case("a1 b2", "a1 b2 a1", {"delivered": 2, **doubled(1, 0)}),
    "twice again": Case("a1", "a1 a1 a1", {"delivered": 1, **doubled(2, 0)}),
    "R0 R1 R2 R0": Case("a0 a1 a2", "a0 a1 a2 a0", {"delivered": 3, **doubled(0, 1, order_violations=1)}),
    "R0 R1 R2 R0 R1 R2": Case("a0 a1 a2", "a0 a1 a2 a0 a1 a2", {"delivered": 3, **doubled(0, 3, order_violations=1)}),
    "R0 R2 R1": Case("a0 a1 a2", "a0 a2 a1", {"delivered": 3, "reordered": 1, "order_violations": 1}),
    "R0 R2 R0 R1: late after a repeat": Case(
        "a0 a1 a2", "a0 a2 a0 a1", {"delivered": 3, "reordered": 1, **doubled(0, 1, order_violations=1)}
    ),
    "adjacent and separated": Case("a0 a1", "a0 a1 a1 a0", {"delivered": 2, **doubled(1, 1, order_violations=1)}),
    "R0 R2 R2 R1 R1": Case(
        "a0 a1 a2", "a0 a2 a2 a1 a1", {"delivered": 3, "reordered": 1, **doubled(2, 0, order_violations=1)}
    ),
    "no key, no order": Case("-1 -2", "-2 -1", {"delivered": 2}),
    "no key, next to itself": Case("-1 -2", "-1 -1 -2", {"delivered": 2, **doubled(1, 0)}),
    "lost": Case("a1 a2 b3", "a1 b3", {"delivered": 2, "lost": 1}),
    "all lost": Case("a1 a2", "", {"lost": 2}),
    "pending": Case("a1 a2 a3 a4", "a1 a2", {"delivered": 2, "pending": 1, "lost": 1}, pending=(2, 3)),
    "unknown": Case("a1", "a1 a2 b3", {"delivered": 1, "unknown": 2}),
    "unknown twice": Case("a1", "a1 a2 a2", {"delivered": 1, "unknown": 1, **doubled(1, 0)}),
    "foreign": Case("a1 a2", "a1 a? z? a2", {"delivered": 2, "foreign": 2}),
    "foreign between copies": Case("a1", "a1 a? a1", {"delivered": 1, "foreign": 1, **doubled(1, 0)}),
    "another term's copy": Case("a1", "a1@X a1@Y", {"delivered": 1, **doubled(1, 0, explained=1)}),
    "the same term's copy": Case("a1", "a1@X a1@X", {"delivered": 1, **doubled(1, 0)}),
    "the first term again": Case("a1", "a1@X a1@Y a1@X", {"delivered": 1, **doubled(2, 0, explained=1)}),
    "three terms": Case("a1", "a1@X a1@Y a1@Z", {"delivered": 1, **doubled(2, 0, explained=2)}),
    "a copy without header": Case("a1", "a1@X a1", {"delivered": 1, **doubled(1, 0)}),
    "a copy of one without header": Case("a1", "a1 a1@X", {"delivered": 1, **doubled(1, 0)}),
    "two partitions": Case("a1 b2 a3 b4", "0:a1 1:b2 0:a3 1:b4", {"delivered": 4}),
    "a key in two partitions": Case("a1 a2 a3", "0:a2 1:a1 1:a3", {"delivered": 3, "split_keys": 1}),
    "a copy in another partition": Case(
        "a1", "0:a1@X 1:a1@Y", {"delivered": 1, "split_keys": 1, **doubled(0, 1, explained=1)}
    ),
    "a foreign record splits no key": Case("a1", "0:a1 1:a?", {"delivered": 1, "foreign": 1}),
    "a key in two topics": Case("a1 a2", "t/0:a2 u/1:a1", {"delivered": 2}),
    "a key in the same partition of two topics": Case("a1 a2", "t/0:a2 u/0:a1", {"delivered": 2}),
    "another key": Case("a1 b2", "a1 c2", {"delivered": 2, "wrong_keys": 1}),
    "the key is gone": Case("a1", "-1", {"delivered": 1, "wrong_keys": 1}),
    "a key that is not known": Case("-1", "a1", {"delivered": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_counts(name):
    assert CASES[name].counts() == CASES[name].expected


# One line of a query at a time is broken; some case above must notice.
BROKEN_TABLES = [
    ("CREATE_STEPS", "PARTITION BY topic, key, partition ", "PARTITION BY topic, key "),
    ("CREATE_STEPS", "PARTITION BY topic, key, partition ", "PARTITION BY key, partition "),
    ("CREATE_STEPS", "PARTITION BY topic, key, partition ", "PARTITION BY topic, partition "),
    ("CREATE_STEPS", "ORDER BY offset", "ORDER BY id"),
    ("CREATE_STEPS", "    WHERE id IS NOT NULL\n", ""),
    ("CREATE_STEPS", "id <= id_before", "id < id_before"),
    ("CREATE_COPIES", "leader IS NOT NULL AND ", ""),
    ("CREATE_COPIES", "leader_before IS NOT NULL AND ", ""),
    ("CREATE_COPIES", "copy_of_leader = 1", "1"),
    ("CREATE_COPIES", "copy_of_leader = 1", "leader <> leader_before"),
    ("CREATE_COPIES", "steps.id_before = steps.id", "1"),
    ("CREATE_COPIES", "steps.record = numbered.record", "1"),
    ("CREATE_COPIES", "count(*) > 1", "count(*) > 2"),
    ("CREATE_COPIES", "PARTITION BY topic, key, partition, id ORDER", "PARTITION BY topic, key, partition ORDER"),
]
BROKEN_ANOMALIES = [
    ("lost", "observed.id = committed.id", "1"),
    ("lost", "pending.id = committed.id", "0"),
    ("pending", "observed.id = pending.id", "0"),
    ("unknown", "id IS NOT NULL AND ", ""),
    ("unknown", "committed.id = observed.id", "1"),
    ("unknown", "GROUP BY id", ""),
    ("wrong_keys", "committed.key IS NOT NULL AND ", ""),
    ("wrong_keys", "observed.key IS NOT committed.key", "observed.key <> committed.key"),
    ("adjacent_duplicates", "WHERE adjacent", ""),
    ("separated_duplicates", "copy > 1 AND ", ""),
    ("separated_duplicates", "AND NOT adjacent", ""),
    ("unexplained_duplicates", "copy > 1 AND ", ""),
    ("unexplained_duplicates", "AND NOT explained", ""),
    ("reordered", "PARTITION BY topic, key, partition ", "PARTITION BY topic, key "),
    ("reordered", "PARTITION BY topic, key, partition ", "PARTITION BY topic, partition "),
    ("reordered", "AND key IS NOT NULL", ""),
    ("reordered", "copy_in_sequence > 1", "0"),
    ("reordered", "copy_in_sequence > 1", "1"),
    ("reordered", "id < id_before", "0"),
    ("order_violations", "id < id_before", "id <= id_before"),
    ("order_violations", "AND key IS NOT NULL", ""),
    ("split_keys", "id IS NOT NULL AND ", ""),
    ("split_keys", "GROUP BY topic, key", "GROUP BY key"),
    ("split_keys", "GROUP BY topic, key", "GROUP BY topic"),
    ("split_keys", "min(partition) <> max(partition)", "0"),
]


def broken(query, what, by):
    assert what in query
    return query.replace(what, by)


def somebody_noticed():
    try:
        return any(case.counts() != case.expected for case in CASES.values())
    except TypeError:  # an explanation without a leader
        return True


@pytest.mark.parametrize(("name", "what", "by"), BROKEN_TABLES)
def test_a_broken_table_is_noticed(monkeypatch, name, what, by):
    monkeypatch.setattr(queries, name, broken(getattr(queries, name), what, by))
    assert somebody_noticed()


@pytest.mark.parametrize(("name", "what", "by"), BROKEN_ANOMALIES)
def test_a_broken_query_is_noticed(monkeypatch, name, what, by):
    monkeypatch.setitem(comparison.ANOMALIES, name, broken(comparison.ANOMALIES[name], what, by))
    assert somebody_noticed()


@pytest.mark.parametrize(
    "name", ["lost", "unknown", "wrong_keys", "unexplained_duplicates", "reordered", "order_violations", "split_keys"]
)
def test_each_anomaly_makes_the_report_not_ok(name):
    report = audit(rows("a1"), log("a1"))
    assert report.ok
    object.__setattr__(report, name, 1)
    assert not report.ok


def test_explained_duplicates_pending_and_foreign_records_are_ok():
    assert audit(rows("a1 a2"), log("a1@X a1@Y a?"), pending=[2]).ok


def test_explanations_say_which_terms():
    report = audit(rows("a1 b2 a3"), log("a1@X b2@X a1@Y b2@Y a3@Y a3@Z"))
    assert [(e.old_leader, e.new_leader, e.count) for e in report.explanations] == [
        (LEADERS["X"], LEADERS["Y"], 2),
        (LEADERS["Y"], LEADERS["Z"], 1),
    ]
    assert str(report.explanations[1]) == f"1 record sent by leader {LEADERS['Y']}, again by leader {LEADERS['Z']}"
    assert report.explained_duplicates == 3


def test_leaders_come_in_order_of_their_first_record():
    report = audit(rows("a1 a2 a3"), log("a1@Y a2@Y a2@X a3@X a?"))
    assert [(s.leader, s.records, s.first_ms, s.last_ms) for s in report.leaders] == [
        (LEADERS["Y"], 2, 1000, 1001),
        (LEADERS["X"], 2, 1002, 1003),
    ]


def test_examples_are_limited_and_show_keys_only_when_asked():
    report = audit(rows("a1 b9"), log("a1 c5 3:d6 d7"), examples=2)
    assert [(e.topic, e.partition, e.offset, e.id, e.key) for e in report.examples["unknown"]] == [
        ("t", 0, 1, 5, None),
        ("t", 3, 2, 6, None),
    ]
    assert report.unknown == 3
    assert [(e.topic, e.id) for e in report.examples["lost"]] == [(None, 9)]
    assert "reordered" not in report.examples
    shown = audit(rows("a1 b9"), log("a1 c5"), show_keys=True)
    assert [shown.examples[name][0].key for name in ("unknown", "lost")] == ["c", "b"]


def test_what_was_committed_while_we_read_is_not_unknown():
    asked = []

    def again():
        asked.append(1)
        return rows("a1 a2 a4")

    report = audit(rows("a1"), log("a1 a2 a3"), committed_again=again)
    assert (report.committed, report.delivered, report.unknown, report.lost) == (2, 2, 1, 0)
    assert audit(rows("a1"), log("a1"), committed_again=again).ok
    assert asked == [1]


def test_an_outbox_that_is_purged_knows_nothing_of_what_was_delivered():
    report = audit(rows("a3 a4"), log("a1 a2 a3"), pending=[3, 4], purged_when_delivered=True)
    assert (report.purged, report.unknown, report.delivered, report.pending, report.lost) == (2, 0, 1, 1, 0)
    assert report.ok


def test_the_temporary_database_goes_where_asked_and_leaves_nothing(tmp_path):
    spill = tmp_path / "it's here"
    spill.mkdir()
    seen = set()

    def observed():
        for number in range(6_000):
            yield ObservedRecord("t", 0, number, 0, b"x" * 4_000, number)
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the listing's own is gone by now
                seen.add(link.readlink().parent)

    audit([], observed(), spill_directory=spill)
    assert spill in seen
    assert list(spill.iterdir()) == []
