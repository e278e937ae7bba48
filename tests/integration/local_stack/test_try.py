"""`harvest try`: from nothing to three records that a consumer has read and an audit has proved, as often as it is
typed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from harvest_lib.cli.try_out import DATABASE
from harvest_lib.local_stack.description import running
from harvest_lib.local_stack.jars import kafka_jars, resolve
from harvest_lib.local_stack.trial import own_database

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

HARVEST = Path(sys.executable).parent / "harvest"


@pytest.fixture
def harvest(tmp_path, parts):
    """Run a command with a state folder of its own; no stack is left in it."""
    resolve(kafka_jars("4.3.1"), parts)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    cache = os.environ.get("HARVEST_CACHE")
    variables |= {"HARVEST_HOME": str(tmp_path), **({"HARVEST_CACHE": cache} if cache else {})}

    def run(*arguments, **more):
        return subprocess.run(
            [HARVEST, *arguments],
            env={**variables, **more},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            cwd=tmp_path,
        )

    yield run
    if found := running(tmp_path):
        os.kill(found.pid, signal.SIGKILL)


def test_three_records_are_committed_delivered_read_and_proved_each_time(harvest, tmp_path):
    (tmp_path / "harvest.yaml").write_text("harvest:\n  outboxTable: of_the_user\n  leaderGroupID: of.the.user\n")
    for orders in ((1, 2, 3), (4, 5, 6)):
        done = harvest("try", HARVEST_OUTBOX_TABLE="of_the_user", HARVEST_DELIVERY="barrier")
        assert done.returncode == 0, done.stdout + done.stderr
        read = re.findall(r'^key (\d): {"order":\d,"total":\d0}$', done.stdout, re.MULTILINE)
        assert sorted(map(int, read)) == list(orders), done.stdout
        assert "no anomalies" in done.stdout
    found = running(tmp_path)
    password = psycopg.conninfo.conninfo_to_dict(found.dsn)["password"]
    assert password not in done.stdout + done.stderr
    with psycopg.connect(own_database(found.dsn, DATABASE)) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (6,)
        assert connection.execute("SELECT to_regclass('of_the_user')").fetchone() == (None,), "its settings alone"

    shell = harvest("up", "--exports")
    assert shell.returncode == 0, shell.stderr
    line = f'{shell.stdout}\n"{HARVEST}" topics create again && env'
    names = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    assert f"HARVEST_DSN={found.dsn}" in names
    assert "created: topic again" in names
    assert password not in harvest("up").stdout


def test_servers_of_others_are_not_touched(harvest):
    done = harvest("try", HARVEST_DSN="host=db.example.com")
    assert done.returncode == 7
    assert "unset HARVEST_DSN" in done.stderr
