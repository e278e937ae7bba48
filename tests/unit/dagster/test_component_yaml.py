"""The `defs.yaml` of the component: its paths, secrets, errors at load, schema, and what is scaffolded."""

import re
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing import create_defs_folder_sandbox
from dagster_shared.serdes import serialize_value
from pydantic import ValidationError
from support.component_project import FULL, SOUND, TYPE

import dagster_harvest
from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.settings import OutboxSettings

pytestmark = pytest.mark.quick


# -- paths


def test_paths_are_relative_to_the_folder_of_the_defs_yaml(project):
    place = project.add(
        {
            "name": "shop",
            "topics": ["orders"],
            "config_file": "../shared/harvest.yaml",
            "audit": {
                "engine": "spark",
                "state_folder": "state",
                "metrics_folder": "/var/metrics",
                "docs_folder": "docs",
            },
            "archive": {"url": "archive"},
            "replays": [{"subscription": "v2", "topics": {"orders": "o"}, "archive": "s3://archive/shop"}],
        }
    )
    (project.folder / "shared").mkdir()
    (project.folder / "shared" / "harvest.yaml").write_text(SOUND + "outboxTable: sales\n")
    resource = project.load().resources["shop_harvester"]
    assert resource.config_file == str(project.folder.resolve() / "shared" / "harvest.yaml")
    assert resource.config().outbox_table == "sales"
    shop = project.component(place)
    assert shop.audit.state_folder == str(place.resolve() / "state")
    assert shop.audit.docs_folder == str(place.resolve() / "docs")
    assert shop.audit.metrics_folder == "/var/metrics"
    assert shop.archive.url == str(place.resolve() / "archive")
    assert shop.replays[0].archive == "s3://archive/shop"


def test_paths_in_python_are_relative_to_the_process():
    settings = OutboxSettings(name="shop", topics=["orders"], config_file="harvest.yaml")
    assert outbox_definitions(settings).resources["shop_harvester"].config_file == "harvest.yaml"


# -- secrets


@pytest.mark.parametrize(
    "template", ["{{ env.SHOP_DSN }}", "{{env.SHOP_DSN}}", "{{ env('SHOP_DSN') }}", '{{ env("SHOP_DSN") }}']
)
def test_of_the_template_of_a_variable_the_name_is_stored(project, monkeypatch, template):
    monkeypatch.setenv("SHOP_DSN", "host=db dbname=shop user=u password=canary-7f")
    project.add({**FULL, "dsn": template})
    loaded = project.load()
    stored = serialize_value(RepositorySnap.from_def(loaded.get_repository_def()))
    assert "SHOP_DSN" in stored
    assert "canary-7f" not in stored
    read = loaded.resources["shop_harvester"].process_config_and_initialize()
    assert "canary-7f" in read.config(leadership="solo").data_source.conninfo()


def test_a_connection_string_without_a_password_may_be_written_down(project):
    project.add({"name": "shop", "topics": ["orders"], "dsn": "service=shop"})
    assert project.load().resources["shop_harvester"].dsn == "service=shop"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"dsn": "host=db password=canary-7f"}, "dsn has a password that Dagster would store and show"),
        ({"dsn": "postgresql://u:canary-7f@db/x"}, "dsn has a password that Dagster would store and show"),
        ({"dsn": "host=db password={{ env.SHOP_PASSWORD }}"}, "dsn may be the template of a single variable"),
        ({"dsn": "{{ env('SHOP_DSN', 'password=canary-7f') }}"}, "dsn may be the template of a single variable"),
        ({"dsn_variable": "{{ env.SHOP_DSN }}"}, "dsn_variable"),
        ({"dsn": "service=shop", "dsn_variable": "SHOP_DSN"}, "remove one of them"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(project, monkeypatch, attributes, message):
    monkeypatch.setenv("SHOP_DSN", "host=db password=canary-7f")
    project.add({"name": "shop", "topics": ["orders"], **attributes})
    with pytest.raises(ComponentTreeException) as refused:
        project.load()
    cause = refused.value.__cause__
    assert isinstance(cause, ValidationError)
    assert message in str(cause)
    assert "canary-7f" not in str(cause)


# -- the configuration file, when the definitions are loaded


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "there is no configuration file"),
        ("leaderGroupId: shop\n", "`leaderGroupId` is not a setting; did you mean `leaderGroupID`?"),
        ("outboxTable: sales\n", "`leaderGroupID` is missing"),
        (SOUND + "limits: {heartbeatTimeout: 4}\n", "is a number without a unit"),
        (SOUND + "delivery: nonsense\n", "`delivery` must be"),
    ],
)
def test_a_configuration_file_that_is_wrong_is_found_when_it_is_loaded(project, contents, message):
    place = project.add({"name": "shop", "topics": ["orders"], "config_file": "harvest.yaml"})
    if contents is not None:
        (place / "harvest.yaml").write_text(contents)
    with pytest.raises(ComponentTreeException, match="building definitions for shop") as refused:
        project.load()
    assert message in str(refused.value.__cause__)
    assert str(place.resolve() / "harvest.yaml") in str(refused.value.__cause__)


def test_what_only_a_run_has_is_not_asked_for(project, monkeypatch):
    monkeypatch.setenv("HARVEST_LIMITS__HEARTBEAT_TIMEOUT_SECONDS", "nonsense")
    place = project.add({"name": "shop", "topics": ["orders"], "config_file": "harvest.yaml", "dsn_variable": "S_DSN"})
    (place / "harvest.yaml").write_text(SOUND)
    project.add({"name": "crm", "topics": ["customers"], "config_file": "/nowhere/harvest.yaml"})
    project.add({"name": "billing", "topics": ["invoices"]})
    assert {"shop_harvester", "crm_harvester", "billing_harvester"} <= set(project.load().resources)


# -- the schema, and what is scaffolded


def test_every_attribute_has_a_description():
    schema = OutboxComponent.get_model_cls().model_json_schema()
    of_dagster = {dg.AssetAttributesModel.__name__, *dg.AssetAttributesModel.model_json_schema()["$defs"]}
    models = {name: each for name, each in schema["$defs"].items() if name not in of_dagster}
    found = {
        f"{name}.{attribute}": each.get("description", "")
        for name, model in {"OutboxComponent": schema, **models}.items()
        for attribute, each in model["properties"].items()
    }
    assert len(found) > 60
    assert [name for name, text in found.items() if not text.strip()] == []


def test_an_attribute_of_a_subclass_is_described():
    class Ours(OutboxComponent):
        team: str = "none"
        """The team that is called."""

    properties = Ours.get_model_cls().model_json_schema()["properties"]
    assert properties["team"]["description"] == "The team that is called."
    assert properties["table"]["description"] == OutboxComponent.model_fields["table"].description


def test_examples_of_the_schema_are_values():
    shop = {"name": "shop", "topics": ["orders"]}
    for name, each in OutboxComponent.get_model_cls().model_json_schema()["properties"].items():
        for example in each.get("examples", []):
            OutboxComponent.from_attributes_dict(attributes={**shop, name: example})


def test_what_is_scaffolded_has_lines_to_uncomment():
    with create_defs_folder_sandbox() as sandbox:
        place = sandbox.scaffold_component(OutboxComponent, "my-shop", scaffold_params={"topics": "orders, refunds"})
        text = (place / "defs.yaml").read_text()
    assert yaml.safe_load(text) == {"type": TYPE, "attributes": {"name": "my_shop", "topics": ["orders", "refunds"]}}
    assert yaml.safe_load(re.sub("(?m)^  # ", "  ", text))["attributes"] == {
        "name": "my_shop",
        "topics": ["orders", "refunds"],
        "table": "sales.outbox",
        "config_file": "harvest.yaml",
        "dsn_variable": "MY_SHOP_DSN",
    }


def test_no_topic_is_refused_before_anything_is_written():
    with create_defs_folder_sandbox() as sandbox:
        with pytest.raises(ValidationError, match="names no topic: write `--topics orders,refunds`"):
            sandbox.scaffold_component(OutboxComponent, "shop", scaffold_params={"topics": " , "})
        assert not (sandbox.defs_folder_path / "shop").exists()


def test_type_checkers_read_the_types():
    assert (Path(dagster_harvest.__file__).parent / "py.typed").is_file()
