"""The component in a project: what its `defs.yaml` and its subclasses change, and what is refused when it is loaded."""

import json
import re
import traceback
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing import create_defs_folder_sandbox
from dagster_shared.serdes import serialize_value
from pydantic import ValidationError

import dagster_harvest
from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.settings import OutboxSettings, SparkWriterSettings

pytestmark = pytest.mark.quick

TYPE = "dagster_harvest.components.OutboxComponent"
SOUND = "leaderGroupID: shop\nbaseKafkaConfig: {bootstrap.servers: 'kafka:9092'}\n"
OURS = """
import dagster as dg

from dagster_harvest.components import OutboxComponent


class OurOutbox(OutboxComponent):
    team: str = "none"

    def get_asset_spec(self, spec, role):
        spec = super().get_asset_spec(spec, role)
        return spec.replace_attributes(owners=[f"team:{self.team}"]) if role == "topic" else spec

    def execute(self, context):
        context.add_output_metadata({"ours": str(context.run.tags["harvest/daemon"])})
"""
FULL = {
    "name": "shop",
    "topics": ["orders"],
    "writer": {"module": "json.tool", "table": "sales", "start": "2026-01-01"},
    "archive": {"url": "/srv/archive"},
    "replays": [{"subscription": "v2", "topics": {"orders": "orders.v2"}}],
}
"""An outbox with every asset that there is."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("HARVEST_CONFIG", "HARVEST_DSN", "HARVEST_OUTBOX_TABLE", "HARVEST_LEADER_GROUP_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project():
    """Return a project of a user: `add` writes a component into a folder of it, `load` returns its definitions."""
    with create_defs_folder_sandbox() as sandbox:

        class Project:
            package = sandbox.project_name
            folder = sandbox.defs_folder_path

            def add(self, attributes, type_=TYPE, **further):
                place = self.folder / attributes["name"]
                place.mkdir()
                declared = {"type": type_, "attributes": attributes, **further}
                (place / "defs.yaml").write_text(yaml.safe_dump(declared))
                return place

            def component(self, place):
                with sandbox.load_component_and_build_defs(place) as (found, _):
                    return found

            def load(self):
                with sandbox.build_all_defs() as found:
                    dg.Definitions.validate_loadable(found)
                    return found

        yield Project()


def specs(defs):
    """Return the specs of the assets that are defined, by their keys."""
    found = defs.resolve_all_asset_specs()
    return {spec.key.to_user_string(): spec for spec in found}


def said(error):
    return "".join(traceback.format_exception(error))


# -- what is changed


def test_translation_reaches_every_asset_with_its_role(project):
    translation = {"owners": ["team:sales"], "tags": {"role": "{{ role }}"}, "group_name": "{{ spec.key.path[0] }}"}
    project.add({**FULL, "translation": translation})
    found = specs(project.load())
    assert {key: (spec.tags["role"], spec.group_name) for key, spec in found.items()} == {
        "postgres/sales": ("business", "postgres"),
        "outbox/shop_outbox": ("outbox", "outbox"),
        "kafka/orders_topic": ("topic", "kafka"),
        "archive/shop_archive": ("archive", "archive"),
        "replay/shop_replay": ("replay", "replay"),
        "audit/shop_audit": ("audit", "audit"),
        "audit/shop_audit_verified": ("verified", "audit"),
    }
    assert all(spec.owners == ["team:sales"] for spec in found.values())
    assert all(spec.kinds for key, spec in found.items() if key.startswith("kafka/")), "what was there stays"


def test_jobs_have_their_assets_after_a_translation(project):
    project.add({**FULL, "translation": {"group_name": "sales"}})
    loaded = project.load()
    assert {"audit__shop_audit", "shop_audit_checks"} <= set(loaded.resolve_job_def("shop_audit").graph.node_dict)
    assert "shop_written" in loaded.resolve_job_def("shop_load").graph.node_dict


@pytest.mark.parametrize(
    ("translation", "field"),
    [
        ({"key": "sales/all"}, "topic"),
        ({"key_prefix": "sales"}, "topic"),
        ({"key": "{{ 'sales/orders' if role == 'topic' else spec.key.to_user_string() }}"}, "topic"),
        ({"key": "{{ 'sales/ok' if role == 'verified' else spec.key.to_user_string() }}"}, "verified"),
    ],
)
def test_a_translation_of_keys_is_refused_with_the_attribute_that_changes_keys(project, translation, field):
    project.add({**FULL, "translation": translation})
    with pytest.raises(ComponentTreeException) as refused:
        project.load()
    assert "jobs, checks and the supervisor use the first key" in said(refused.value)
    assert f"give it by `asset_keys`, under `{field}`" in said(refused.value)


def test_a_subclass_changes_specs_and_the_daemons_body(project):
    (project.folder.parent / "ours.py").write_text(OURS)
    translation = {"tags": {"role": "{{ role }}"}}
    attributes = {"name": "shop", "topics": ["orders"], "team": "sales", "translation": translation}
    project.add(attributes, f"{project.package}.ours.OurOutbox")
    loaded = project.load()
    found = specs(loaded)
    assert found["kafka/orders_topic"].owners == ["team:sales"]
    assert found["kafka/orders_topic"].tags["role"] == "topic"
    assert not found["outbox/shop_outbox"].owners
    with dg.DagsterInstance.ephemeral() as instance:
        result = loaded.resolve_job_def("shop_harvester_daemon").execute_in_process(instance=instance)
    assert result.success
    (output,) = result.get_step_success_events()
    (done,) = [each for each in result.all_events if each.is_successful_output]
    assert output.step_key == "harvest_shop"
    assert done.event_specific_data.metadata["ours"].value == "shop"


def test_runs_and_ops_of_each_job_have_their_tags_and_pools(project):
    jobs = {
        "daemon": ("shop_harvester_daemon", "harvest_shop"),
        "audit": ("shop_audit", "audit__shop_audit"),
        "archive": ("shop_archive_segments", "archive__shop_archive"),
        "replay": ("shop_replay_subscription", "replay__shop_replay"),
        "load": ("shop_load", "shop_written"),
    }
    pods = {
        "pod_template_spec_metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
        "container_config": {"resources": {"requests": {"cpu": "1", "memory": "{{ 2 * 2 }}Gi"}}},
    }
    project.add(
        {
            **FULL,
            "run_tags": {job: {"team": job, "dagster-k8s/config": pods} for job in jobs},
            "op": {job: {"tags": {"team": job}, "pool": f"pool_of_{job}"} for job in jobs},
        }
    )
    loaded = project.load()
    for each, (job, op) in jobs.items():
        found = loaded.resolve_job_def(job)
        assert found.run_tags["team"] == each
        assert json.loads(found.run_tags["dagster-k8s/config"]) == json.loads(
            json.dumps(pods).replace("{{ 2 * 2 }}", "4")
        )
        node = found.get_node_named(op).definition
        assert (node.tags["team"], node.pool) == (each, f"pool_of_{each}")


@pytest.mark.parametrize(
    ("given", "priority"),
    [({}, "10"), ({"team": "sales"}, "10"), ({"dagster/priority": "3"}, "3"), ({"dagster/priority": -1}, "-1")],
)
def test_the_daemon_leaves_the_queue_before_backfills_unless_it_is_told_otherwise(project, given, priority):
    (project.folder.parent / "ours.py").write_text(OURS)
    attributes = {"name": "shop", "topics": ["orders"], "run_tags": {"daemon": given}}
    project.add(attributes, f"{project.package}.ours.OurOutbox")
    loaded = project.load()
    with dg.DagsterInstance.ephemeral() as instance:
        run = loaded.resolve_job_def("shop_harvester_daemon").execute_in_process(instance=instance).dagster_run
    assert run.tags["dagster/priority"] == priority
    assert run.tags["harvest/daemon"] == "shop"
    assert "dagster/priority" not in loaded.resolve_job_def("shop_audit").run_tags


def test_no_tag_replaces_one_that_the_supervisor_reads(project):
    project.add({"name": "shop", "topics": ["orders"], "run_tags": {"daemon": {"harvest/daemon": "else"}}})
    assert project.load().resolve_job_def("shop_harvester_daemon").run_tags["harvest/daemon"] == "shop"


@pytest.fixture
def documented():
    """Return the blocks of the section "Customize", by language."""
    page = (Path(__file__).parents[3] / "docs" / "dagster.md").read_text(encoding="utf-8")
    section = page.partition("\n## Customize\n")[2].partition("\n## ")[0]
    return lambda language: re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_documentation_customizes_an_outbox(project, documented):
    translation, tags, _ = map(yaml.safe_load, documented("yaml"))
    subclass, _ = documented("python")
    (project.folder.parent / "documented.py").write_text(subclass)
    attributes = {"name": "shop", "topics": ["orders"], "team": "streams", **translation, **tags}
    project.add(attributes, f"{project.package}.documented.ShopOutbox")
    loaded = project.load()
    topic, outbox = (specs(loaded)[key] for key in ("kafka/orders_topic", "outbox/shop_outbox"))
    assert (topic.owners, topic.group_name, topic.tags["role"]) == (["team:streams"], "streams", "topic")
    assert (outbox.owners, outbox.group_name, outbox.tags["role"]) == (["team:sales"], "sales", "outbox")
    assert "safe-to-evict" in loaded.resolve_job_def("shop_harvester_daemon").run_tags["dagster-k8s/config"]


def test_the_queue_of_the_documentation_is_one_of_dagster(documented):
    *_, queue = map(yaml.safe_load, documented("yaml"))
    with dg.instance_for_test(overrides=queue) as instance:
        limits = instance.get_concurrency_config().run_queue_config
    assert limits.max_concurrent_runs == 20
    assert limits.tag_concurrency_limits == [{"key": "dagster/backfill", "limit": 15}]


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


# -- several outboxes, and what is the project's own


def test_a_topic_that_two_outboxes_fill_is_one_asset_of_both(project):
    project.add({"name": "shop", "topics": ["orders", "refunds"]})
    project.add({"name": "crm", "topics": ["customers", "orders"]})
    project.add({"name": "billing", "topics": ["invoices"]})
    loaded = project.load()
    graph = loaded.resolve_asset_graph()
    assert graph.get(dg.AssetKey(["kafka", "orders_topic"])).parent_keys == {
        dg.AssetKey(["outbox", "crm_outbox"]),
        dg.AssetKey(["outbox", "shop_outbox"]),
    }
    assert graph.get(dg.AssetKey(["kafka", "refunds_topic"])).parent_keys == {dg.AssetKey(["outbox", "shop_outbox"])}
    assert specs(loaded)["kafka/orders_topic"].group_name == "crm"


def test_outboxes_of_python_name_the_others():
    shop, crm = (OutboxSettings(name=name, topics=["orders"]) for name in ("shop", "crm"))
    both = dg.Definitions.merge(outbox_definitions(shop, beside=[crm]), outbox_definitions(crm, beside=[shop]))
    dg.Definitions.validate_loadable(both)
    parents = both.resolve_asset_graph().get(dg.AssetKey(["kafka", "orders_topic"])).parent_keys
    assert parents == {shop.outbox_key, crm.outbox_key}


def test_a_context_of_a_test_is_enough():
    found = dg.component_defs(component=OutboxComponent(name="shop", topics=["orders"]))
    assert "kafka/orders_topic" in specs(found)


def test_a_client_of_the_project_starts_the_spark_jobs(project):
    (project.folder / "cluster.py").write_text(
        "import dagster as dg\n\n\nclass OnOurCluster(dg.PipesSubprocessClient):\n    pass\n\n\n"
        "@dg.definitions\ndef defs():\n"
        '    return dg.Definitions(resources={"our_cluster": OnOurCluster(), "spark_pipes": "ours"})\n'
    )
    by_spark = {"audit": {"engine": "spark"}}
    project.add({**FULL, **by_spark, "pipes_resource": "our_cluster"})
    project.add({"name": "crm", "topics": ["customers"], **by_spark})
    loaded = project.load()
    assert type(loaded.resources["our_cluster"]).__name__ == "OnOurCluster"
    assert type(loaded.resources["crm_pipes"]) is dg.PipesSubprocessClient
    assert "shop_pipes" not in loaded.resources
    for job, key in (("shop_audit", "our_cluster"), ("shop_load", "our_cluster"), ("crm_audit", "crm_pipes")):
        assert key in loaded.resolve_job_def(job).get_required_resource_defs()


def test_a_client_that_is_not_there_is_named(project):
    attributes = {"name": "shop", "topics": ["orders"], "audit": {"engine": "spark"}}
    project.add({**attributes, "pipes_resource": "our_cluster"})
    with pytest.raises(Exception, match="our_cluster"):
        project.load()


def test_a_client_gets_the_command_and_the_variables(tmp_path):
    """What a client of another cluster has to understand."""
    config = tmp_path / "harvest.yaml"
    config.write_text(SOUND + "dataSource: host=127.0.0.1 dbname=none user=nobody\n")
    heard = []

    class OnOurCluster(dg.PipesSubprocessClient):
        def run(self, **arguments):
            heard.append(arguments)
            raise dg.Failure("the cluster is full")

    writer = SparkWriterSettings(module="json.tool", start="2013-01-01")
    settings = OutboxSettings(
        name="shop", topics=["orders"], config_file=str(config), writer=writer, pipes_resource="our_cluster"
    )
    loaded = dg.Definitions.merge(
        outbox_definitions(settings), dg.Definitions(resources={"our_cluster": OnOurCluster()})
    )
    with dg.DagsterInstance.ephemeral() as instance:
        done = loaded.resolve_job_def("shop_load").execute_in_process(
            instance=instance, partition_key="2013-01-01", raise_on_error=False
        )
    assert done.failure_data_for_node("shop_written").user_failure_data.description == "the cluster is full"
    (arguments,) = heard
    assert set(arguments) == {"context", "command", "env"}
    assert arguments["command"][1:4] == ["-m", "dagster_harvest.pipes_main", "json.tool"]
    assert {"HARVEST_DSN", "HARVEST_OUTBOX_TABLE", "HARVEST_BOOTSTRAP_SERVERS"} <= set(arguments["env"])


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
