"""The audit by Spark of fifty times the usual number of records: its time, and the memory of all its processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil

from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from tests.benchmarks.backlog import Servers
from tests.benchmarks.drain import drain_batches
from tests.benchmarks.report import Result, at_most

if TYPE_CHECKING:
    from tests.benchmarks.scenarios import Size

_LONGEST_SECONDS = 300
_MOST_MEGABYTES = 2_000
_LOOK_SECONDS = 0.2
_MEGABYTE = 1_000_000


def audit(servers: Servers, size: "Size") -> Iterator[Result]:
    """From the start of the process, Spark's included, until the results are committed. All must be well."""
    records = 50 * size.records
    own = replace(servers, topic=f"bench-audit-{uuid4().hex[:8]}")
    own.make_topic()
    own.make_native()
    own.insert(records)
    own.settle()
    drain_batches(own, records, delivery="pipelined")
    state = default_state()
    java_home = find_java(state)
    jars = [path for each in (POSTGRES_JDBC, spark_kafka_jars()) for path in resolve(each, state, java_home)]
    places = {"HARVEST_DSN": own.dsn, "HARVEST_BOOTSTRAP_SERVERS": own.bootstrap_servers}
    environment = {**os.environ, **places, "JAVA_HOME": str(java_home), "HARVEST_SPARK_JARS": ",".join(map(str, jars))}
    environment.pop("HARVEST_CONFIG", None)
    began, highest = time.perf_counter(), 0
    with subprocess.Popen([sys.executable, "-m", "spark_jobs.audit", "--topic", own.topic], env=environment) as process:
        while process.poll() is None:
            highest = max(highest, _resident_bytes(process.pid))
            time.sleep(_LOOK_SECONDS)
    seconds = time.perf_counter() - began
    if process.returncode != 0:
        raise RuntimeError(f"the audit ended with {process.returncode}")
    yield Result(name="spark-audit-records", value=records, unit="records")
    yield at_most("spark-audit", seconds, "s", target=_LONGEST_SECONDS)
    yield at_most("spark-audit-memory", highest / _MEGABYTE, "MB", target=_MOST_MEGABYTES)


def _resident_bytes(pid: int) -> int:
    try:
        found = psutil.Process(pid)
        return sum(each.memory_info().rss for each in [found, *found.children(recursive=True)])
    except psutil.NoSuchProcess:  # it has just ended
        return 0
