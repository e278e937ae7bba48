"""The table of features by version of Spark: what its cells are made from, and that the page has all of it."""

import re
from pathlib import Path

import pytest
from support.spark_versions import FEATURES, MODULES, cells, table

from harvest_lib.local_stack.jars import TESTED_SPARK
from harvest_lib.spark.tested import NEWEST, OLDEST

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
JUNIT = """<testsuites><testsuite>
<testcase classname="" name="tests.integration.spark.test_pushed_filters"><skipped/></testcase>
<testcase classname="tests.integration.spark.test_audit" name="test_a"><system-out/></testcase>
<testcase classname="tests.integration.spark.test_audit_results" name="test_replay.b"><failure/></testcase>
<testcase classname="tests.integration.spark.test_replay" name="test_a[one]"/>
<testcase classname="tests.integration.spark.test_replay" name="test_a[other.test_audit.x]"><error/></testcase>
<testcase classname="tests.integration.spark.test_outbox_stream_reader" name="test_a"/>
<testcase classname="tests.integration.spark.test_outbox_stream_reader"
    name="test_all_that_is_available_comes_in_micro_batches_of_the_limit"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_cell_is_what_became_of_the_tests_of_its_feature(tmp_path):
    (tmp_path / "4.0.xml").write_text(JUNIT)
    found = cells(tmp_path / "4.0.xml")
    assert found["audit"] == "yes"
    assert found["replay"] == "fails"
    assert found["filters that Postgres evaluates"] == "no"
    assert found["follow an outbox as a stream"] == "yes"
    assert found["`availableNow` in micro-batches of a limit"] == "no"
    assert found["Spark Connect"] == "no"


def test_each_module_of_a_feature_is_there():
    assert [each for each in MODULES if not (ROOT / "tests" / "integration" / "spark" / each).is_file()] == []
    for tests in FEATURES.values():
        for module, _, test in (each.partition(".") for each in tests):
            source = (ROOT / "tests" / "integration" / "spark" / f"{module}.py").read_text(encoding="utf-8")
            assert f"def {test}" in source


def test_the_page_has_a_place_for_the_table_and_none_of_other_features():
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"<!-- table -->\n(.*?)<!-- end of table -->", page, re.DOTALL)
    rows = [[cell.strip() for cell in row.strip("|\n").split("|")] for row in written.splitlines()]
    stated = {line: {row[0]: row[place] for row in rows[2:]} for place, line in enumerate(TESTED_SPARK, start=1)}
    assert not written or written == table(stated)


def test_the_versions_that_are_accepted_are_those_that_are_tested():
    assert [*TESTED_SPARK] == [f"{OLDEST[0]}.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
