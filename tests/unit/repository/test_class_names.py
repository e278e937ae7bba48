"""A public class of the product has a name of its own, so a search for the name finds one class."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]


def test_no_two_public_classes_have_one_name():
    places = defaultdict(list)
    for package in ("harvest_lib", "dagster_harvest", "airflow_dags", "spark_jobs", "infra"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
