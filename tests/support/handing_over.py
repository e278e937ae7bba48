"""An outbox to be handed over by either implementation, and processes that do it, for tests of both."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg

from harvest_lib.native import library
from harvest_lib.outbox import NativeTable, OutboxTable

SANITIZERS = "TEST_SANITIZERS"
"""The variable with what a process has to preload that uses the library under test, built with sanitizers."""

SOURCES = Path(library.__file__).parent
"""The folder of the C files."""
COLUMNS = "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
ALL = f"SELECT {COLUMNS} FROM outbox ORDER BY id"  # noqa: S608 - of constants

_INSERT = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (%s, %s, %s, %s, %s)
"""


def made_outbox(dsn, value_type="varchar"):
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox"), value_type=value_type).create(connection)


def insert(dsn, rows):
    """Insert rows: topic, key, value, header names, header values."""
    with psycopg.connect(dsn) as connection:
        connection.cursor().executemany(_INSERT, list(rows))


def parked(dsn):
    """Return id and reason of what was parked."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT id, reason FROM outbox_parked_ids ORDER BY id").fetchall()


def run_python(program, *arguments, seconds, **variables):
    """Run a program in a process that uses the library which is tested here."""
    preloaded = {"LD_PRELOAD": os.environ[SANITIZERS]} if SANITIZERS in os.environ else {}
    begin = f"from harvest_lib.native import library; library.FILE = type(library.FILE)({str(library.FILE)!r})"
    command = [sys.executable, "-X", "faulthandler", "-c", f"{begin}\n{program}", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    environment |= preloaded | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
