"""A project that is not this repository: `dg` lists the component, and writes a folder that loads as it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.dagster_project import DEFINITIONS, PYPROJECT

pytestmark = pytest.mark.full

COMPONENT = "dagster_harvest.components.OutboxComponent"


@pytest.fixture
def dg(tmp_path):
    """Run `dg` in a project of another name."""
    package = tmp_path / "warehouse"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(package="warehouse"))
    for module in (package, package / "defs"):
        (module / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    home = tmp_path / "home"
    home.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    variables |= {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(tmp_path)}

    def run(*arguments, code=0):
        done = subprocess.run(
            [str(Path(sys.executable).parent / "dg"), *arguments],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr if code else done.stdout

    run.defs = package / "defs"
    return run


def test_the_component_is_listed(dg):
    assert COMPONENT in dg("list", "components", "--json")


@pytest.mark.parametrize(
    ("folder", "options", "attributes"),
    [
        ("shop", (), {"name": "shop", "topics": ["orders"]}),
        ("my-shop.eu", ("--topics", "orders, refunds"), {"name": "my_shop_eu", "topics": ["orders", "refunds"]}),
        ("2nd", ("--name", "second"), {"name": "second", "topics": ["orders"]}),
        ("3rd", (), {"name": "outbox_3rd", "topics": ["orders"]}),
    ],
)
def test_what_is_scaffolded_loads_as_it_is(dg, folder, options, attributes):
    dg("scaffold", "defs", COMPONENT, folder, *options)
    written = yaml.safe_load((dg.defs / folder / "defs.yaml").read_text())
    assert written == {"type": COMPONENT, "attributes": attributes}
    assert "All definitions loaded" in dg("check", "defs")
    assert f"{attributes['name']}_harvester_daemon" in dg("list", "defs", "--json")


def test_the_help_shows_the_attributes_that_are_required(dg):
    assert re.search(r"topics:\s+- orders", dg("scaffold", "defs", COMPONENT, "--help"))


def test_no_topic_is_refused(dg):
    refused = dg("scaffold", "defs", COMPONENT, "shop", "--topics", ",", code=1)
    assert "names no topic: write `--topics orders,refunds`, or leave it out" in refused
    assert not (dg.defs / "shop").exists()


def test_a_configuration_file_that_is_wrong_fails_the_check_of_the_definitions(dg):
    dg("scaffold", "defs", COMPONENT, "shop")
    file = dg.defs / "shop" / "defs.yaml"
    file.write_text(file.read_text().replace("  # config_file:", "  config_file:"))
    assert "there is no configuration file" in dg("check", "defs", code=1)
    (dg.defs / "shop" / "harvest.yaml").write_text("leaderGroupId: shop\n")
    assert "`leaderGroupId` is not a setting; did you mean `leaderGroupID`?" in dg("check", "defs", code=1)
    (dg.defs / "shop" / "harvest.yaml").write_text("leaderGroupID: shop\n")
    assert "All definitions loaded" in dg("check", "defs")


def test_dg_prints_a_description_of_each_attribute(dg):
    printed = dg("utils", "inspect-component", COMPONENT, "--defs-yaml-schema")
    assert "The Kafka topics of the outbox's records." in printed
    assert "Interval at which a run reports its numbers." in printed
