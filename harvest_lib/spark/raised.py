"""The exceptions that Spark raises where a job waits for a result."""

from pyspark.errors import PySparkException

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
"""The exceptions of PySpark, and of py4j where that is installed: py4j raises if the JVM is lost. A client of Spark
Connect has no py4j."""

try:
    from py4j.protocol import Py4JError
except ModuleNotFoundError:
    pass
else:
    SPARK_ERRORS += (Py4JError,)
