"""A Spark session for tests that has the jars of the JDBC driver and of the Kafka source.

One Java serves all sessions of a process, and its class path is that of the first: so each of them has all jars.
"""

from contextlib import contextmanager

import pytest

from infra.local.jars import POSTGRES_JDBC, SPARK_KAFKA, resolve
from infra.local.java import find_java
from infra.local.state import default_state
from spark_jobs.session import spark_session


def all_jars():
    """Return the jars of the JDBC driver and of the Kafka source."""
    state = default_state()
    return [path for each in (POSTGRES_JDBC, SPARK_KAFKA) for path in resolve(each, state, find_java(state))]


@contextmanager
def session_with_kafka(folder):
    """Start a session; for as long as it lasts, the environment names its jars and its Java."""
    java_home, jars = find_java(default_state()), all_jars()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home))
        patch.setenv("HARVEST_SPARK_JARS", ",".join(map(str, jars)))
        with spark_session(jars=jars, work_folder=folder) as session:
            yield session
