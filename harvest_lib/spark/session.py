"""The Spark session of the jobs: submitted, or local and without files in the current folder."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from harvest_lib.errors import ConfigError
from harvest_lib.spark.tested import require_tested

JARS_VARIABLE = "HARVEST_SPARK_JARS"

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
# Without a level of its own Spark raises the root's to WARN, and logs that.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# A task that fails is reported once, by the job, without the rows it carried.
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
logger.datasources.name = org.apache.spark.sql.execution.datasources
logger.datasources.level = off
logger.aborted.name = org.apache.spark.util.Utils
logger.aborted.level = off
"""


def is_submitted() -> bool:
    """Return True if `spark-submit` started this process. It then decides on master, jars and all other settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def jdbc_jars(option: str | None) -> list[Path]:
    """Return the paths of jars in the option, else in HARVEST_SPARK_JARS. Both are lists of paths, separated by commas.

    Raises ConfigError when no jar is named or a jar does not exist. Under `spark-submit`, which has `--jars` and
    `--packages`, no jar has to be named.
    """
    named = option or os.environ.get(JARS_VARIABLE, "")
    jars = [Path(part.strip()).expanduser().absolute() for part in named.split(",") if part.strip()]
    next_step = (
        f"`export {JARS_VARIABLE}=$(python -m harvest_lib.spark.jars)` downloads it once; or name the jar of "
        "org.postgresql:postgresql by --jdbc-jar or that variable"
    )
    if not jars and not is_submitted():
        raise ConfigError("no Postgres JDBC driver was named", field="--jdbc-jar", next_step=next_step)
    for jar in jars:
        if not jar.is_file():
            raise ConfigError(f"the JDBC jar {jar} does not exist", field="--jdbc-jar", next_step=next_step)
    return jars


@contextmanager
def spark_session(
    *, jars: Sequence[Path], work_folder: Path, app_name: str = "outbox-harvester", is_long: bool = False
) -> Iterator[SparkSession]:
    """Start a Spark session, on two local cores or with the settings of `spark-submit`. Stop it when the block ends.

    With `is_long` Java compiles more thoroughly, which pays off in a long job. If the process already has a running
    session, that session is used, and left running. Everything that Spark writes (shuffle files, warehouse, copies of
    jars) is below `work_folder`; the caller removes that folder. Raises ConfigError when Java is missing, and with a
    version of Spark that is not tested.
    """
    require_tested(pyspark.__version__)
    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    if is_submitted():
        yield from _until_end(SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate())
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    logging_file = work_folder / "log4j2.properties"
    logging_file.write_text(_LOG4J)
    java_options = " ".join(
        [
            # A job of seconds is faster with less compilation and the serial garbage collector: 32 s of CPU instead of
            # 51 for all twelve months of flights (2 cores).
            *([] if is_long else ["-XX:TieredStopAtLevel=1"]),
            "-XX:+UseSerialGC",
            f'"-Dlog4j2.configurationFile={logging_file.as_uri()}"',
            f'"-Djava.io.tmpdir={work_folder}"',
            f'"-Dderby.system.home={work_folder}"',
        ]
    )
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.local.dir": str(work_folder),
        "spark.speculation": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(work_folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    try:
        session = SparkSession.builder.master("local[2]").appName(app_name).config(map=settings).getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigError(
            "Spark's Java process did not start",
            field="JAVA_HOME",
            next_step="install Java 17 or 21, or point JAVA_HOME at its folder; Spark's own message is above",
        ) from error
    yield from _until_end(session)


def _until_end(session: SparkSession) -> Iterator[SparkSession]:
    try:
        yield session
    finally:
        session.stop()
