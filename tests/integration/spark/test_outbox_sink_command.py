"""The sink's command line: the files it reads, what it says is wrong, and a driver that is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from support.waiting import eventually

from harvest_lib.spark.outbox_sink import main
from harvest_lib.spark.sink import queries

pytestmark = [pytest.mark.full, pytest.mark.spark]

DEADLINE_SECONDS = 150  # a Spark of its own may have to start on a busy machine


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_the_command_line_reads_files(ending, frame, database, jdbc_jar, tmp_path, capsys):
    file = tmp_path / f"orders.{ending}"
    frame.write.option("header", "true").format(ending.removesuffix("l")).save(str(file))
    arguments = [str(file), "--dsn", database.dsn, "--batch-id", "b", "--topic", "orders", "--key", "customer"]
    arguments += ["--header", "place=place", "--fixed-header", "kind=new", "--batch-header", "batch"]
    arguments += ["--order-by", "place", "--value", "place", "--value", "text", "--jdbc-jar", str(jdbc_jar)]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "promoted"
    assert [json.loads(value)["place"] for _, value, _, _ in database.records()] == list(range(100))
    assert database.records()[7][2:] == (["place", "kind", "batch"], ["7", "new", "b"])
    assert main(arguments) == 0
    assert "already-promoted" in capsys.readouterr().out
    database.connection.execute("UPDATE outbox_batches SET rows = 99")
    assert main(arguments) == 8


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nowhere.parquet"], 3, "cannot be read"),
        (["orders.txt"], 3, "--format"),
        (["orders.jsonl", "--schema", "customer nonsense"], 3, "cannot be read"),
        (["orders.jsonl", "--header", "place"], 3, "NAME="),
        (["orders.jsonl", "--topic", "a b"], 3, "cannot name a Kafka topic"),
        (["orders.jsonl", "--schema", "customer string, place boolean", "--batch-id", "c"], 5, "CANNOT_PARSE"),
        (["orders.jsonl", "--outbox", "events"], 4, "does not exist"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    arguments, code, says, spark, database, jdbc_jar, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.jsonl").write_text('{"customer": "c1", "place": "canary"}\n')
    file, *more = arguments
    base = [str(tmp_path / file), "--dsn", database.dsn, "--batch-id", "b", "--topic", "t", "--key", "customer"]
    assert main([*base, "--jdbc-jar", str(jdbc_jar), *more]) == code
    assert says in (said := capsys.readouterr().err)
    assert "canary" not in said
    assert database.counts()["outbox"] == 0


def test_a_driver_killed_between_staging_and_promotion_is_made_good(database, frame, jdbc_jar, tmp_path):
    frame.write.json(str(tmp_path / "orders.jsonl"))
    command = [
        sys.executable,
        "-m",
        "harvest_lib.spark.outbox_sink",
        str(tmp_path / "orders.jsonl"),
        "--dsn",
        database.dsn,
    ]
    command += ["--batch-id", "b", "--topic", "orders", "--key", "customer", "--jdbc-jar", str(jdbc_jar)]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    folder = tmp_path / "cwd"
    folder.mkdir()
    with psycopg.connect(database.dsn) as holder:
        holder.execute(queries.LOCK_OUTBOX, {"outbox": "outbox"})
        with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as driver:
            try:
                eventually(
                    lambda: waits_for_the_outbox(database) or driver.poll() is not None, seconds=DEADLINE_SECONDS
                )
            finally:
                driver.kill()
        assert driver.returncode == -signal.SIGKILL
    assert database.counts() == {"outbox": 0, "outbox_staging": 100, "outbox_batches": 0}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == [], "nothing may be left in the current directory"
    assert database.counts() == {"outbox": 100, "outbox_staging": 0, "outbox_batches": 1}


def waits_for_the_outbox(database):
    return database.ask("""
        SELECT 1 FROM pg_locks JOIN pg_database d ON d.oid = database
        WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()""")
