"""Each thread of the product is started by `harvest_lib.process.threads`, or its owner handles errors of any kind."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
HANDLED = {
    "harvest_lib/process/threads.py": "the shared mechanism",
    "harvest_lib/harvester/harvest.py": "`_guarded` ends the harvester, and `await_stopped` raises the error",
    "harvest_lib/harvester/terms.py": "the same `_guarded`",
    "harvest_lib/leadership/term_registry.py": "`run_election` keeps the error, and `wait` raises it",
    "harvest_lib/pipeline/threads.py": "`_attempt` keeps the failure, and the pipeline raises it",
    "harvest_lib/cli/run.py": "the command raises the error",
    "harvest_lib/local_stack/jars.py": "`result` of each download raises the error",
    "harvest_lib/source/packed_window.py": "`pages` takes the result, or the error, of each call",
    "harvest_lib/airflow/triggers/outbox_events.py": "`_until_done` tells the error of each call",
    "harvest_lib/spark/data_source/topic_ahead.py": "`map` of the pool raises the error",
}
"""Modules that start a thread themselves, and what hears of an error of any kind."""


def test_threads_start_where_their_errors_are_heard_of():
    found = {
        str(path.relative_to(ROOT))
        for package in ("harvest_lib", "dagster_harvest")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"threading\.(Thread|Timer)\(|ThreadPoolExecutor\(", path.read_text("utf-8"))
    }
    assert found == set(HANDLED)
