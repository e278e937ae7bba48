"""A Spark session for tests that has the jars of the JDBC driver and of the Kafka source.

One Java serves all sessions of a process, and its class path is that of the first: so each of them has all jars.
"""

from contextlib import contextmanager

import pytest

from harvest_lib.local_stack.jars import POSTGRES_JDBC, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from harvest_lib.spark.session import JARS_VARIABLE, spark_session


def all_jars():
    """Return the jars of the JDBC driver and of the Kafka source."""
    state = default_state()
    return [path for each in (POSTGRES_JDBC, spark_kafka_jars()) for path in resolve(each, state)]


@contextmanager
def java_named():
    """Name the Java in the environment for as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java(default_state())))
        yield


@contextmanager
def jars_named():
    """Name all jars in the environment for as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(JARS_VARIABLE, ",".join(map(str, all_jars())))
        yield


@contextmanager
def session(folder):
    """Start a session that works in the folder; for as long as it lasts, the environment names its Java."""
    with java_named(), spark_session(jars=all_jars(), work_folder=folder) as started:
        yield started
