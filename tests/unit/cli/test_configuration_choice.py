"""The file that configures a command, and the variables that are refused."""

from pathlib import Path

import pytest

from harvest_lib.cli.check import _inspected
from harvest_lib.cli.options import chosen_file, configuration
from harvest_lib.cli.run import run
from harvest_lib.config import HarvestConfig
from harvest_lib.config.environment import unknown_variables
from harvest_lib.config.reading import refuse_unknown_variables
from harvest_lib.errors import ConfigError
from harvest_lib.harvester import preflight

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("folder")]

ROOT = Path(__file__).parents[3]


def written(path, table):
    path.write_text(f"leaderGroupID: shop\noutboxTable: {table}\n")
    return path


def test_the_option_comes_before_the_variable_and_that_before_the_folder(folder, monkeypatch):
    assert chosen_file(None)[0] is None
    assert configuration(None).harvest.outbox_table == "outbox"
    written(folder / "harvest.yaml", "of_the_folder")
    assert configuration(None).harvest.outbox_table == "of_the_folder"
    monkeypatch.setenv("HARVEST_CONFIG", "")
    assert configuration(None).harvest.outbox_table == "of_the_folder"
    monkeypatch.setenv("HARVEST_CONFIG", str(written(folder / "other.yaml", "of_the_variable")))
    assert configuration(None).harvest.outbox_table == "of_the_variable"
    assert configuration(written(folder / "third.yaml", "of_the_option")).harvest.outbox_table == "of_the_option"
    monkeypatch.setenv("HARVEST_OUTBOX_TABLE", "of_its_own_variable")
    assert configuration(None).harvest.outbox_table == "of_its_own_variable"


def test_an_error_names_the_file_and_why_it_was_read(folder, monkeypatch):
    with pytest.raises(ConfigError) as caught:
        configuration(None, elects=True)
    assert "no --config, no HARVEST_CONFIG, no harvest.yaml in this folder" in caught.value.evidence
    (folder / "harvest.yaml").write_text("outboxTabel: x\nsource: mark\nshards: 0\n")
    with pytest.raises(ConfigError) as caught:
        configuration(None)
    assert caught.value.evidence == "harvest.yaml, line 1, field `outboxTabel` (harvest.yaml is in this folder)"
    assert [each.line for each in caught.value.problems] == [1, 3]
    assert all("is in this folder" in each.evidence for each in caught.value.problems)
    monkeypatch.setenv("HARVEST_CONFIG", "none.yaml")
    with pytest.raises(ConfigError) as caught:
        configuration(None)
    assert caught.value.evidence == "none.yaml (HARVEST_CONFIG names none.yaml)"
    with pytest.raises(ConfigError) as caught:
        configuration(Path("given.yaml"))
    assert caught.value.evidence == "given.yaml"


def test_a_check_says_which_file_it_read_and_warns_of_unknown_variables(folder, monkeypatch):
    monkeypatch.setattr(preflight, "inspect", lambda *_, **__: preflight.Report())
    written(folder / "harvest.yaml", "sales")
    report = _inspected(None, [], in_dagster=False)
    assert report.passed == [("configuration", "harvest.yaml is in this folder")]
    assert report.findings == []
    monkeypatch.setenv("HARVEST_OUTBOXTABLE", "x")
    monkeypatch.setenv("HARVEST_MINE", "x")
    report = _inspected(None, [], in_dagster=False)
    assert [each.severity for each in report.findings] == ["warning", "warning"]
    assert [each.cause for each in report.findings] == [
        "`HARVEST_MINE` is not a setting",
        "`HARVEST_OUTBOXTABLE` is not a setting",
    ]
    assert "did you mean HARVEST_OUTBOX_TABLE?" in report.findings[1].next_step
    assert report.exit_code == 0


def test_a_harvester_is_not_started_with_an_unknown_variable(folder, monkeypatch):
    monkeypatch.setattr("harvest_lib.cli.run.stop_on_signals", lambda _: None)
    monkeypatch.setenv("HARVEST_LEADERGROUPID", "shop")
    with pytest.raises(ConfigError) as caught:
        run(config=written(folder / "harvest.yaml", "sales"))
    assert caught.value.cause == "`HARVEST_LEADERGROUPID` is not a setting"
    assert "did you mean HARVEST_LEADER_GROUP_ID?" in caught.value.next_step


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("HARVEST_DNS", "HARVEST_DSN"),
        ("HARVEST_BOOTSTRAP_SERVER", "HARVEST_BOOTSTRAP_SERVERS"),
        ("HARVEST_leader_topic", "HARVEST_LEADER_TOPIC"),
        ("HARVEST_TABLE", "HARVEST_OUTBOX_TABLE"),
        ("HARVEST_CONFIGS", "HARVEST_CONFIG"),
    ],
)
def test_a_near_name_is_proposed(variable, meant):
    (problem,) = unknown_variables({variable: "x"}, HarvestConfig.model_fields)
    assert problem.remedy.startswith(f"did you mean {meant}?")


def test_what_is_far_from_each_setting_has_another_remedy():
    (problem,) = unknown_variables({"HARVEST_FESTIVAL": "x"}, HarvestConfig.model_fields)
    assert problem.remedy == "unset HARVEST_FESTIVAL, or give it a name without HARVEST_"


@pytest.mark.parametrize(
    "variable",
    [
        *("HARVEST_SERVICE_HOST", "HARVEST_SERVICE_PORT", "HARVEST_SERVICE_PORT_METRICS", "HARVEST_PORT"),
        *("HARVEST_PORT_9464_TCP", "HARVEST_PORT_9464_TCP_ADDR", "HARVEST_PORT_9464_TCP_PORT"),
        *("HARVEST_METRICS_SERVICE_HOST", "HARVEST_METRICS_PORT_80_TCP_PROTO", "HARVESTER", "OTHER"),
    ],
)
def test_variables_of_others_are_left_alone(variable):
    """Kubernetes sets variables for a service named `harvest`; a pod must start nevertheless."""
    assert unknown_variables({variable: "x"}, HarvestConfig.model_fields) == []


def test_every_variable_of_the_project_is_known(monkeypatch):
    public = (ROOT / "tests/contract/public_names.txt").read_text().splitlines()
    names = [line.split()[1] for line in public if line.startswith("variable HARVEST_")]
    assert len(names) > 15
    assert unknown_variables(dict.fromkeys(names, "x"), HarvestConfig.model_fields) == []
    for name in HarvestConfig.model_fields:
        monkeypatch.setenv(f"HARVEST_{name.upper()}", "x")
    monkeypatch.setenv("HARVEST_LIMITS__SEND_BUFFER", "x")
    monkeypatch.setenv("HARVEST_EMPTY", "")
    refuse_unknown_variables()
