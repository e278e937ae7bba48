"""The comparison against a naive one in memory, on random logs."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.audit import CommittedRecord, ObservedRecord, audit

pytestmark = pytest.mark.quick

LEADERS = [None, b"X" * 16, b"Y" * 16, b"Z" * 16]
IDS = st.integers(0, 8)

committed_sides = st.dictionaries(IDS, st.sampled_from([None, b"a", b"b"]))
logs = st.lists(
    st.tuples(
        st.sampled_from(["t", "u"]),
        st.integers(0, 1),
        st.sampled_from([None, b"a", b"a", b"b", b""]),
        st.none() | IDS | IDS | IDS,
        st.sampled_from(LEADERS),
    ),
    max_size=25,
)


def steps_back(ids):
    return sum(after < before for before, after in pairwise(ids))


def naive(committed, observed, pending):
    """Count as the words of the report say, one record after the other in (topic, partition, offset) order."""
    known = [r for r in sorted(observed, key=lambda r: r[:3]) if r.id is not None]
    found = {r.id for r in known}
    sequences, places, senders = defaultdict(list), defaultdict(set), defaultdict(list)
    counts = Counter()
    for record in known:
        sequence = sequences[record.topic, record.partition, record.key]
        if record.id in senders:
            counts["adjacent_duplicates" if sequence[-1:] == [record.id] else "separated_duplicates"] += 1
            before = senders[record.id]
            explained = record.leader is not None and before[-1] is not None and record.leader not in before
            counts["unexplained_duplicates"] += not explained
        senders[record.id].append(record.leader)
        sequence.append(record.id)
        if record.key is not None:
            places[record.topic, record.key].add(record.partition)
        expected = committed.get(record.id)
        counts["wrong_keys"] += expected is not None and expected != record.key
    for (_, _, key), ids in sequences.items():
        if key is not None:
            counts["order_violations"] += steps_back(ids)
            counts["reordered"] += steps_back(list(dict.fromkeys(ids)))
    return {
        "records": len(observed),
        "committed": len(committed),
        "delivered": len(found & committed.keys()),
        "pending": len(pending - found),
        "lost": len(committed.keys() - found - pending),
        "unknown": len(found - committed.keys()),
        "purged": 0,
        "foreign": len(observed) - len(known),
        "wrong_keys": counts["wrong_keys"],
        "duplicates": len(known) - len(found),
        "adjacent_duplicates": counts["adjacent_duplicates"],
        "separated_duplicates": counts["separated_duplicates"],
        "unexplained_duplicates": counts["unexplained_duplicates"],
        "explained_duplicates": len(known) - len(found) - counts["unexplained_duplicates"],
        "reordered": counts["reordered"],
        "order_violations": counts["order_violations"],
        "split_keys": sum(len(partitions) > 1 for partitions in places.values()),
    }


@given(committed_sides, logs, st.sets(IDS), st.randoms(use_true_random=False))
def test_the_comparison_counts_as_the_naive_one_does(committed, log, pending, random):
    observed = [ObservedRecord(t, p, offset, 0, *rest) for offset, (t, p, *rest) in enumerate(log)]
    shuffled = random.sample(observed, len(observed))
    report = audit([CommittedRecord(*row) for row in committed.items()], shuffled, pending=pending)
    document = report.to_json()
    expected = naive(committed, observed, pending)
    assert {name: document[name] for name in expected} == expected
    assert report.records == (report.delivered + report.purged + report.unknown + report.duplicates + report.foreign)
    assert sum(explanation.count for explanation in report.explanations) == report.explained_duplicates
    assert sum(leader.records for leader in report.leaders) == sum(r.leader is not None for r in observed)
