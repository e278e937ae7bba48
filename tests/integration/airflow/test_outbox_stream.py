"""A watcher of an outbox as Airflow drives it: its position passes an event only after Airflow has stored it."""

import json
import os
import subprocess
import sys

import pytest
from support.airflow_services import ROOT
from support.native_outbox import NativeOutbox

pytestmark = [pytest.mark.gate, pytest.mark.timeout(300)]


def test_the_position_passes_what_is_stored_and_everything_else_comes_again(dsn, bootstrap_servers, tmp_path):
    NativeOutbox(dsn, "outbox").close()
    variables = {
        "HARVEST_DSN": dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "AIRFLOW_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "tests" / "support" / "airflow_stream.py")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "events": [1, 2, 3, 4],
        "position before any is stored": [0, None, True],
        "position while the first is not stored": [0, None, True],
        "position before what is stored has settled": [0, None, True],
        "position after the end": [2, 2, True],
        "events after a restart": [3, 4],
        "events after another watcher came": [3, 4, 4],
        "position after another watcher came": [3, 3, True],
        "events in the end": [3, 4, 4, 5],
        "position after it ended too early": [4, None, False],
        "events after it ended too early": [5],
    }
