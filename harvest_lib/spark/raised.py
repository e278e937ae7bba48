"""What Spark raises where a job waits for it."""

from pyspark.errors import PySparkException

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
"""With py4j's errors, which are those of a lost JVM too. A client of Spark Connect has neither JVM nor py4j."""

try:
    from py4j.protocol import Py4JError
except ModuleNotFoundError:
    pass
else:
    SPARK_ERRORS += (Py4JError,)
