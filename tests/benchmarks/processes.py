"""A module run as a process of its own, and what it cost."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from tests.benchmarks.backlog import Servers

_LOOK_SECONDS = 0.2
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a process: how many records, how long, and the CPU time and the most memory of it and its children."""

    records: int
    seconds: float
    cpu_seconds: float
    megabytes: float


def run_module(servers: Servers, records: int, module: str, *arguments: str) -> Run:
    """Run a module of Python's with these servers, its output shown; measure it. Raises RuntimeError if it fails."""
    began, cpu_seconds, highest = time.perf_counter(), 0.0, 0
    with subprocess.Popen([sys.executable, "-m", module, *arguments], env=_environment(servers)) as process:
        while process.poll() is None:
            cpu, resident = _used(process.pid)
            cpu_seconds, highest = max(cpu_seconds, cpu), max(highest, resident)
            time.sleep(_LOOK_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"{module} ended with {process.returncode}")
    return Run(
        records=records,
        seconds=time.perf_counter() - began,
        cpu_seconds=cpu_seconds,
        megabytes=highest / _MEGABYTE,
    )


def _environment(servers: Servers) -> Mapping[str, str]:
    state = default_state()
    java_home = find_java(state)
    jars = [path for each in (POSTGRES_JDBC, spark_kafka_jars()) for path in resolve(each, state)]
    places = {"HARVEST_DSN": servers.dsn, "HARVEST_BOOTSTRAP_SERVERS": servers.bootstrap_servers}
    environment = {**os.environ, **places, "JAVA_HOME": str(java_home), "HARVEST_SPARK_JARS": ",".join(map(str, jars))}
    environment.pop("HARVEST_CONFIG", None)
    return environment


def _used(pid: int) -> tuple[float, int]:
    """Return the CPU seconds and the resident bytes of a process and its children."""
    cpu, resident = 0.0, 0
    try:
        found = psutil.Process(pid)
        for each in (found, *found.children(recursive=True)):
            times = each.cpu_times()
            cpu += times.user + times.system
            resident += each.memory_info().rss
    except psutil.NoSuchProcess:  # it has just ended
        return 0.0, 0
    return cpu, resident
