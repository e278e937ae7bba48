"""Every line of Spark that the extra allows: sink, writing, reading, streams and audit work with each.

Results stay in the state folder. When each line has run, the table of docs/spark.md has to be theirs;
`UPDATE_SPARK_VERSIONS=1` writes it.
"""

import os
import subprocess

import pytest
from support.installed import ROOT, build, find_uv, install
from support.spark_versions import MODULES, cells, table

from harvest_lib.local_stack.jars import TESTED_SPARK
from infra.chaos.report import put_table

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(3_000)]

PAGE = ROOT / "docs" / "spark.md"


@pytest.fixture(scope="module")
def results(parts):
    """The folder of the results: one file of JUnit for each line."""
    folder = parts / "test" / "spark-versions"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("line", TESTED_SPARK)
def test_the_tests_of_spark_pass(line, parts, results, tmp_path):
    uv, venv = find_uv(parts), tmp_path / "venv"
    install(uv, build(uv, tmp_path), venv, "archive", "dev", "local", "quality", "spark")
    options = ("--quiet", "--no-cache", "--python", venv / "bin" / "python")  # uv would keep each Spark that it builds
    replaced = [uv, "pip", "install", *options, f"pyspark[connect]=={line}.*"]
    subprocess.run(replaced, check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PYTEST_"))}
    done = subprocess.run(
        [
            *(venv / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long"),
            *("--junitxml", results / f"{line}.xml"),
            *(f"tests/integration/spark/{module}" for module in MODULES),
        ],
        cwd=ROOT,
        env={**kept, "HARVEST_HOME": str(parts)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2_400,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_the_table_of_the_page_is_of_these_results(results):
    files = {line: results / f"{line}.xml" for line in TESTED_SPARK}
    if missing := [line for line, file in files.items() if not file.is_file()]:
        pytest.skip(f"no results of Spark {', '.join(missing)}")
    written = table({line: cells(file) for line, file in files.items()})
    if os.environ.get("UPDATE_SPARK_VERSIONS"):
        put_table(written, PAGE)
    assert written in PAGE.read_text(encoding="utf-8"), written
