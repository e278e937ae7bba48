"""The component in a project: what its `defs.yaml` and its subclasses change, and what is refused when it is loaded."""

import json
import re
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from support.component_project import FULL, SOUND, said, specs

from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.settings import DaemonSettings, OutboxSettings, SparkWriterSettings
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

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
    """Return the blocks of the section "Customize an outbox", by language."""
    page = (Path(__file__).parents[3] / "docs" / "dagster.md").read_text(encoding="utf-8")
    section = page.partition("\n## Customize an outbox\n")[2].partition("\n## ")[0]
    return lambda language: re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_documentation_customizes_an_outbox(project, documented):
    translation, tags, _ = map(yaml.safe_load, documented("yaml"))
    (subclass,) = documented("python")
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


@pytest.mark.parametrize("of_shop", ["drain", "run"])
def test_a_topic_into_which_a_run_drains_has_a_single_outbox(of_shop):
    shop = OutboxSettings(name="shop", topics=["orders"], daemon=DaemonSettings(mode=of_shop))
    crm = OutboxSettings(name="crm", topics=["orders"], daemon=DaemonSettings(mode="drain"))
    with pytest.raises(ConfigError, match="crm drains into kafka/orders_topic, which shop fills too") as refused:
        outbox_definitions(crm, beside=[shop, crm])
    assert 'asset_keys: {topic: "kafka/{name}/{topic}"}' in refused.value.next_step


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
