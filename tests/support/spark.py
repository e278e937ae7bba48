"""A Spark session for tests that has the jars of the JDBC driver and of the Kafka source."""

from contextlib import contextmanager

import pytest

from infra.local.jars import POSTGRES_JDBC, SPARK_KAFKA, resolve
from infra.local.java import find_java
from infra.local.state import default_state
from spark_jobs.session import spark_session


@contextmanager
def session_with_kafka(folder):
    """Start a session; for as long as it lasts, the environment names its jars and its Java."""
    state = default_state()
    java_home = find_java(state)
    jars = [path for each in (POSTGRES_JDBC, SPARK_KAFKA) for path in resolve(each, state, java_home)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home))
        patch.setenv("HARVEST_SPARK_JARS", ",".join(map(str, jars)))
        with spark_session(jars=jars, work_folder=folder) as session:
            yield session
