"""`pyspark_outbox`, which Spark imports for all of its users: quick, quiet, and never an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]


def imported(first, then):
    """Import the module after other code in a Python of its own; return what that printed."""
    code = f"import sys; {first}; import pyspark_outbox; {then}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'harvest_lib' / 'spark' / 'lookup'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_loads_nothing_that_a_source_does_not_need_to_be_found():
    heavy = "{'confluent_kafka', 'numpy', 'pandas', 'psycopg', 'pyarrow', 'pydantic'}"
    assert imported("import pyspark.sql.datasource; before = set(sys.modules)", "") == ""
    said = imported(
        "import pyspark.sql.datasource; before = set(sys.modules)",
        f"print(pyspark_outbox.DefaultSource.name(), {heavy} & (set(sys.modules) - before))",
    )
    assert said == "outbox set()\n"


@pytest.mark.parametrize(
    "broken",
    [
        "sys.modules['harvest_lib.errors'] = None",  # half of an installation
        "sys.modules['pyspark.sql.datasource'] = None",  # Spark 3
        "import pyspark; pyspark.__version__ = '3.5.7'; sys.modules['pyspark.sql.datasource'] = None",
    ],
)
def test_where_the_source_cannot_be_loaded_there_is_none_and_no_error(broken):
    assert imported(broken, "print(hasattr(pyspark_outbox, 'DefaultSource'))") == "False\n"


def test_a_spark_that_is_not_tested_is_no_error_until_the_format_is_used():
    said = imported(
        "import pyspark; pyspark.__version__ = '5.0.0'",
        "import pickle; from harvest_lib.errors import ConfigError; pickle.dumps(pyspark_outbox.DefaultSource)\n"
        "try: pyspark_outbox.DefaultSource({})\n"
        "except ConfigError as refused: print(refused.cause)",
    )
    assert said == "outbox-harvester is not tested with Spark 5.0.0\n"
