"""Input that once ended in a trace: odd forms of YAML and JSON, texts that cannot be sent, functions as text."""

import os

import pytest

from harvest_lib.config import HarvestConfig, load
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("HARVEST_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("form", ["!!bool maybe", "!!int ''", "!!timestamp x", "!!binary ü", "9" * 5_000])
@pytest.mark.parametrize("setting", ["recordHeader", "limits: {sendBuffer", "columns: {id"])
def test_a_scalar_of_which_yaml_makes_nothing_is_refused_by_name(tmp_path, form, setting):
    file = tmp_path / "reaper.yaml"
    file.write_text(f"leaderGroupID: g\n{setting}: {form}{'}' if '{' in setting else ''}\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.field == setting.replace(": {", ".")
    assert caught.value.line == 2


def test_a_number_too_long_for_python_is_no_json(monkeypatch):
    monkeypatch.setenv("HARVEST_LIMITS", '{"sendBuffer": ' + "9" * 5_000 + "}")
    with pytest.raises(ConfigError, match="HARVEST_LIMITS is not a JSON object"):
        HarvestConfig(leader_group_id="g")


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize(
    "values",
    [
        lambda text: {"leader_group_id": text, "leader_topic": "t"},
        lambda text: {"name": text},
        lambda text: {"outbox_table": text},
        lambda text: {"columns": {"kafka_key": text}},
        lambda text: {"columns": {"kafka_topic": {"value": text}}},
        lambda text: {"base_kafka_config": {"client.id": text}},
        lambda text: {"base_kafka_config": {text: "x"}},
    ],
)
def test_a_text_that_no_server_could_be_sent_is_refused(text, values):
    with pytest.raises(ConfigError):
        HarvestConfig(**{"leader_group_id": "g", **values(text)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error_cb", "print"),
        ("oauth_cb", 1),
        ("default.topic.config", "x"),
        ("batch.size", "many"),
        ("batch.size", 0),
        ("linger.ms", 2**63),
    ],
)
def test_what_the_client_would_end_on_is_refused_by_name(name, value):
    with pytest.raises(ConfigError) as caught:
        HarvestConfig(leader_group_id="g", producer_kafka_config={name: value})
    assert caught.value.field == f"producer_kafka_config.{name}"
