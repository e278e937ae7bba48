"""The table of docs/spark.md: features by version of Spark, from the results of tests that ran with each version."""

import xml.etree.ElementTree as ET
from pathlib import Path

from harvest_lib.local_stack.jars import TESTED_SPARK

FEATURES = {
    "sink by JDBC and through the driver": ("test_outbox_sink", "test_column_names"),
    '`format("outbox")`: write batches and streams': ("test_data_source_writing", "test_outbox_writes"),
    "topic, headers and time of each row; nested values": ("test_rows_of_any_shape",),
    '`format("outbox")`: read an outbox': ("test_outbox_reader", "test_packed_rows", "test_snapshot_option"),
    "filters that Postgres evaluates": ("test_pushed_filters",),
    "read the archive too": ("test_archived",),
    "follow an outbox as a stream": ("test_outbox_stream_reader", "test_restored"),
    "`availableNow` in micro-batches of a limit": (
        "test_outbox_stream_reader.test_all_that_is_available_comes_in_micro_batches_of_the_limit",
    ),
    "delivered records, each once (`harvested`)": ("test_harvested",),
    'delivered records as a stream: `format("harvested")`': ("test_harvested_stream", "test_topic_reader"),
    "what a batch did, in the log and to a listener": ("test_batch_reports",),
    "Spark Connect": ("test_outbox_connect",),
    "audit": ("test_audit",),
    "replay": ("test_replay",),
    "`spark-submit`": ("test_submitted",),
}
"""Features, each with its modules of tests/integration/spark, or with one test."""

MODULES = sorted({f"{test.partition('.')[0]}.py" for tests in FEATURES.values() for test in tests})


def cells(junit: Path) -> dict[str, str]:
    """Return for each feature `yes`, `no` or `fails`, from the results of a session: `no` where Spark can run none of
    its tests, or none ran."""
    ends: dict[str, set[str]] = {feature: set() for feature in FEATURES}
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = f".{case.get('classname', '')}.{case.get('name', '')}".partition("[")[0] + "."
        end = next((each.tag for each in case if each.tag in {"skipped", "failure", "error"}), "passed")
        for feature, tests in FEATURES.items():
            if any(f".{test}." in name for test in tests):
                ends[feature].add(end)
    return {
        feature: "fails" if found & {"failure", "error"} else "yes" if "passed" in found else "no"
        for feature, found in ends.items()
    }


def table(results: dict[str, dict[str, str]]) -> str:
    """Return the table in Markdown, from the cells of each line of Spark."""
    rows = [
        ["", *(f"Spark {line}" for line in results)],
        ["---"] * (1 + len(results)),
        *([feature, *(cells[feature] for cells in results.values())] for feature in FEATURES),
        ["tested version of Spark's Kafka source", *(TESTED_SPARK[line] for line in results)],
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
