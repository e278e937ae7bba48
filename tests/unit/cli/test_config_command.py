"""`harvest config show` and `harvest config new`."""

import json
import re

import pytest
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.config import HarvestConfig, Limits, load
from harvest_lib.config.effective import effective_settings
from harvest_lib.config.spelling import goharvest_name
from harvest_lib.errors import ConfigError

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("folder")]

FILE = """\
harvest:
  leaderGroupID: shop
  dataSource: host=db password=geheim-1
  leaderTopic:
  baseKafkaConfig:
    metadata.broker.list: kafka:9092
    sasl.password: geheim-2
  limits: {sendBuffer: 3, heartbeatTimeout: 2s}
  shards: 4
logging:
  level: debug
"""
FILLED = {"pool": "shop", "host": "db", "database": "shop", "user": "harvester", "broker": "kafka"}


def harvest(*arguments):
    return CliRunner().invoke(app, ["config", *arguments])


@pytest.fixture
def shown(folder, monkeypatch):
    (folder / "harvest.yaml").write_text(FILE)
    monkeypatch.setenv("HARVEST_SHARDS", "2")
    monkeypatch.setenv("HARVEST_LIMITS__SEND_CONCURRENCY", "9")
    return {each["setting"]: each for each in json.loads(harvest("show", "--json").stdout)}


@pytest.mark.parametrize(
    ("setting", "value", "origin"),
    [
        ("leaderGroupID", "shop", "harvest.yaml, line 2"),
        ("leaderTopic", "shop.neli", "default"),
        ("baseKafkaConfig.bootstrap.servers", "kafka:9092", "harvest.yaml, line 6"),
        ("limits.sendBuffer", 3, "harvest.yaml, line 8"),
        ("limits.heartbeatTimeout", "2s", "harvest.yaml, line 8"),
        ("limits.sendConcurrency", 9, "variable HARVEST_LIMITS__SEND_CONCURRENCY"),
        ("limits.markBackoff", "10ms", "default"),
        ("shards", 2, "variable HARVEST_SHARDS"),
        ("keepSegments", "24h", "default"),
        ("logging.level", "debug", "harvest.yaml, line 11"),
    ],
)
def test_each_setting_has_its_value_and_origin(shown, setting, value, origin):
    assert (shown[setting]["value"], shown[setting]["origin"]) == (value, origin)


def test_all_settings_are_shown_and_no_secret(shown):
    names = {goharvest_name(name) for name in HarvestConfig.model_fields} - {"limits", "producerKafkaConfig"}
    limits = {f"limits.{goharvest_name(name)}" for name in Limits.model_fields}
    assert (names - {"baseKafkaConfig"}) | limits <= shown.keys()
    assert shown["baseKafkaConfig.sasl.password"]["value"] == "***"
    text = harvest("show").stdout
    assert "geheim" not in text + json.dumps(shown)
    assert text.startswith("harvest.yaml is in this folder\n")
    assert re.search(r"^shards +variable HARVEST_SHARDS +2 *$", text, re.MULTILINE)


def test_without_a_file_the_pool_may_be_missing(monkeypatch):
    monkeypatch.setenv("HARVEST_DSN", "host=db")
    found = {each.setting: each for each in effective_settings(None)}
    assert found["leadership"].value == "auto"
    assert found["dataSource"].origin == "variable HARVEST_DSN"
    assert {each.origin for each in found.values()} == {"default", "variable HARVEST_DSN"}


def test_a_wrong_file_is_an_error(folder):
    (folder / "harvest.yaml").write_text("shards: none\n")
    refused = harvest("show")
    assert isinstance(refused.exception, ConfigError)
    assert "harvest.yaml is in this folder" in refused.exception.evidence


def test_a_new_file_is_complete_once_its_placeholders_are_filled(folder):
    written = harvest("new")
    assert written.exit_code == 0, written.output
    assert "harvest check -f harvest.yaml" in written.stdout
    text = (folder / "harvest.yaml").read_text()
    assert set(re.findall(r"<(\w+)>", text)) == FILLED.keys()
    with pytest.raises(ConfigError):
        load("harvest.yaml")
    filled = re.sub(r"<(\w+)>", lambda found: FILLED[found[1]], text)
    (folder / "filled.yaml").write_text(filled)
    config = load("filled.yaml").harvest
    defaults = HarvestConfig(
        leader_group_id="shop",
        name=config.name,
        base_kafka_config={"bootstrap.servers": "kafka:9092"},
        data_source="host=db port=5432 dbname=shop user=harvester sslmode=prefer",
    )
    assert config == defaults
    spelled = re.sub(r"^# (\w+:|  \w+: )", r"\1", filled, flags=re.MULTILINE)
    assert spelled.count("\n#") < filled.count("\n#") - 8
    (folder / "spelled.yaml").write_text(spelled)
    assert load("spelled.yaml").harvest == defaults, "what it shows are the defaults"


def test_a_file_is_not_overwritten(folder):
    (folder / "mine.yaml").write_text("mine")
    refused = harvest("new", "mine.yaml")
    assert refused.exit_code == 2
    assert "exists" in refused.output
    assert (folder / "mine.yaml").read_text() == "mine"
    refused = harvest("new", "none/mine.yaml")
    assert refused.exit_code == 2
    assert "No such file" in refused.output
