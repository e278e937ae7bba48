"""Tasks fail at random, copies of slow ones run beside them, connections are cut: each row once, none missing."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from support.faulty_spark import ROWS

from harvest_lib.local_stack import jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from harvest_lib.outbox import NativeTable, OutboxTable

pytestmark = [pytest.mark.full, pytest.mark.spark]

ROOT = Path(__file__).parents[3]
_MISSING_AND_DOUBLE = """
SELECT count(*) FILTER (WHERE found IS NULL), count(*) FILTER (WHERE found > 1), coalesce(sum(found), 0)
FROM generate_series(0, %(runs)s - 1) AS runs (run) CROSS JOIN generate_series(0, %(rows)s - 1) AS ids (id)
LEFT JOIN (
    SELECT kafka_header_values[1] AS batch, (kafka_value::json->>'id')::bigint AS id, count(*) AS found
    FROM outbox GROUP BY 1, 2
) AS recorded ON recorded.id = ids.id AND batch = 'batch-' || run
"""


@pytest.mark.parametrize("way", ["sink", "driver", "format"])
@pytest.mark.parametrize("runs", [2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(1_800)
def test_no_row_is_missing_and_none_comes_twice(dsn, way, runs, tmp_path):
    java_home = find_java(default_state())
    (jar,) = jars.resolve(jars.POSTGRES_JDBC, default_state())
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
        connection.execute("CREATE TABLE faulty (id bigint, customer text, place bigint)")
        environment = os.environ | {
            "JAVA_HOME": str(java_home),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "FAULTY_DSN": dsn,
        }
        command = [sys.executable, "-m", "support.faulty_spark", way, str(jar), str(runs), str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3_000:]
        # A run whose tasks fail too often, or whose promotion is refused, promotes nothing: it is the next's to repeat.
        said = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(each["status"], each.get("rows")) for each in said] == [("promoted", ROWS)] * runs, said
        faults = Counter(path.name.split("-")[0] for path in tmp_path.glob("*-*-*-*-*-*"))
        assert faults["failed"] >= runs
        assert faults["slow"] >= 1
        missing = connection.execute(_MISSING_AND_DOUBLE, {"runs": runs, "rows": ROWS}).fetchone()
        assert missing == (0, 0, runs * ROWS), faults
        if way != "driver":  # that writes records alone
            assert connection.execute("SELECT count(*), count(DISTINCT id) FROM faulty").fetchone() == (
                runs * ROWS,
                ROWS,
            )
        if way == "sink":  # by the other a copy may still commit what nobody will promote
            assert connection.execute("SELECT count(*) FROM faulty_staging").fetchone() == (0,)
