"""Rate of a reader that drains a waiting backlog, with nobody writing."""

import time

import psycopg

from tests.benchmarks.approaches.reader import Reader

_LONGEST_SECONDS = 120


def drain(dsn: str, reader: Reader, records: int) -> float:
    """Return records per second, the last, empty poll included: a reader may have something to finish."""
    left = records
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.perf_counter()
        while (rows := reader.poll(connection)) or left:
            left -= len(rows)
            if time.perf_counter() - began > _LONGEST_SECONDS:
                raise RuntimeError(f"{left} of {records} records were not read")
        return records / (time.perf_counter() - began)
