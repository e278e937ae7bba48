"""Definitions that Dagster loads: everything of the example, and a user's own outbox from a few lines of YAML."""

import re
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster.components.resolved.errors import ResolutionException
from pydantic import ValidationError

from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.example_flights.definitions import defs
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import AssetKeys, DaemonSettings, OutboxSettings, SparkWriterSettings
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

SHOP = """
name: shop
table: sales.outbox
topics: [orders, refunds]
dsn_variable: SHOP_DSN
thresholds:
  backlog_age_warn_seconds: 5
daemon:
  mode: external
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("HARVEST_CONFIG", "HARVEST_DSN", "HARVEST_OUTBOX_TABLE"):
        monkeypatch.delenv(name, raising=False)


def keys(definitions):
    return {key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def checks(definitions):
    return {(key.asset_key.to_user_string(), key.name) for key in definitions.resolve_asset_graph().asset_check_keys}


def test_the_example_of_the_documentation_loads():
    example = yaml.safe_load((Path(__file__).parents[3] / "docs" / "examples" / "dagster_outbox.yaml").read_text())
    assert example["type"] == f"{OutboxComponent.__module__}.{OutboxComponent.__name__}"
    loaded = outbox_definitions(OutboxComponent.resolve_from_yaml(yaml.safe_dump(example["attributes"])))
    dg.Definitions.validate_loadable(loaded)
    assert {"outbox/shop_outbox", "kafka/orders_topic"} <= keys(loaded)
    assert ("outbox/shop_outbox", "backlog_age") in checks(loaded)
    assert "shop_supervisor" in {each.name for each in loaded.sensors}


def test_the_example_loads_whole():
    loaded = defs()
    assert keys(loaded) == {
        "source/nycflights13",
        "postgres/flights",
        "outbox/flights_outbox",
        "kafka/flights_topic",
        "audit/flights_audit",
        "audit/flights_audit_verified",
    }
    assert checks(loaded) == {
        ("postgres/flights", "schema"),
        *(("outbox/flights_outbox", name) for name in ("backlog_age", "backlog_size", "parked", "leader", "schema")),
        *(
            ("audit/flights_audit", name)
            for name in ("lost", "unknown", "ordering", "duplicates", "schema", "expectations")
        ),
    }
    repository = loaded.get_repository_def()
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "flights_supervisor",
        "flights_alerts",
    }
    assert [schedule.name for schedule in repository.schedule_defs] == ["flights_nightly_audit"]


def test_the_example_refuses_the_outbox_of_a_user(monkeypatch):
    monkeypatch.setenv("HARVEST_CONFIG", "/etc/harvest/harvest.yaml")
    with pytest.raises(ConfigError, match=r"write flights into the outbox of /etc/harvest/harvest\.yaml") as refused:
        defs()
    assert "dg dev" in refused.value.next_step


def test_what_is_wrong_downstream_is_blocked():
    graph = defs().resolve_asset_graph()
    blocking = {key.name for key in graph.asset_check_keys if graph.get(key).blocking}
    assert blocking == {"lost", "unknown", "ordering", "schema"}


def test_data_flows_from_the_source_to_the_audit():
    graph = defs().resolve_asset_graph()
    upstream = {dg.AssetKey(["audit", "flights_audit_verified"])}
    while more := {key for each in upstream for key in graph.get(each).parent_keys} - upstream:
        upstream |= more
    assert dg.AssetKey(["source", "nycflights13"]) in upstream
    assert dg.AssetKey(["kafka", "flights_topic"]) in upstream


def test_no_two_names_of_the_lineage_are_the_same():
    last = [key.path[-1] for key in defs().resolve_asset_graph().get_all_asset_keys()]
    assert len(last) == len(set(last))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"topic": "kafka/all"}, "gives two assets the key kafka/all"),
        ({"audit": "audit/{name}", "verified": "audit/{name}"}, "gives two assets the key audit/shop"),
        ({"audit": "audit/{name}_{result}"}, "names what is not known here: it may have {name}"),
        ({"outbox": "kafka/orders", "topic": "kafka/{topic}"}, "gives two assets the key kafka/orders"),
        ({"outbox": "outbox/{table}"}, "names what is not known here: it may have {name}"),
        ({"topic": "kafka//{topic}"}, "has an empty part"),
        ({"outbox": ""}, "has an empty part"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        OutboxSettings(name="shop", topics=["orders", "refunds"], asset_keys=AssetKeys(**keys))


def test_keys_are_what_the_settings_say():
    keys = AssetKeys(business="db/{table}/rows", outbox="{name}", topic="t/{name}/{topic}")
    writer = SparkWriterSettings(module="acme.sales", table="eu.sales", start="2026-01-01")
    settings = OutboxSettings(name="shop", topics=["a.b"], writer=writer, asset_keys=keys)
    assert settings.business_key == dg.AssetKey(["db", "eu", "sales", "rows"])
    assert settings.outbox_key == dg.AssetKey(["shop"])
    assert settings.topic_keys == [dg.AssetKey(["t", "shop", "a.b"])]


def test_what_applications_write_stands_before_the_outbox():
    settings = OutboxSettings(name="shop", topics=["orders"], upstream=["postgres/orders", "carts"])
    graph = outbox_definitions(settings).resolve_asset_graph()
    assert graph.get(dg.AssetKey(["outbox", "shop_outbox"])).parent_keys == {
        dg.AssetKey(["postgres", "orders"]),
        dg.AssetKey(["carts"]),
    }


def test_what_a_writer_reads_stands_before_its_table():
    graph = defs().resolve_asset_graph()
    flights = dg.AssetKey(["postgres", "flights"])
    assert graph.get(flights).parent_keys == {dg.AssetKey(["source", "nycflights13"])}
    assert graph.get(dg.AssetKey(["outbox", "flights_outbox"])).parent_keys == {flights}


def test_an_audit_job_whose_assets_are_not_there_is_an_error_at_load():
    whole = outbox_definitions(OutboxSettings(name="shop", topics=["orders"]))
    assert set(whole.resolve_job_def("shop_audit").graph.node_dict) >= {"audit__shop_audit", "shop_audit_checks"}
    left = [each for each in whole.assets if not (isinstance(each, dg.AssetsDefinition) and has_audits(each))]
    without = dg.Definitions(assets=left, jobs=whole.jobs, resources=whole.resources)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="shop_audit"):
        dg.Definitions.validate_loadable(without)


def has_audits(assets):
    return any(key.path[0] == "audit" for key in assets.keys)


def test_a_day_is_a_partition_and_a_backfill_is_one_run():
    written = defs().resolve_asset_graph().get(dg.AssetKey(["postgres", "flights"]))
    days = written.partitions_def.get_partition_keys()
    assert (days[0], days[-1], len(days)) == ("2013-01-01", "2013-12-31", 365)
    assert written.backfill_policy == dg.BackfillPolicy.single_run()


def test_a_few_lines_of_yaml_are_an_outbox():
    shop = OutboxComponent.resolve_from_yaml(SHOP)
    loaded = outbox_definitions(shop)
    assert {"outbox/shop_outbox", "kafka/orders_topic", "kafka/refunds_topic", "audit/shop_audit"} <= keys(loaded)
    assert not any(key.startswith("postgres/") for key in keys(loaded)), "nobody here writes its business rows"
    assert shop.thresholds.backlog_age_warn_seconds == 5
    names = {job.name for job in loaded.get_repository_def().get_all_jobs()}
    assert "shop_harvester_daemon" not in names, "it runs elsewhere"


def test_a_subscription_to_be_filled_is_a_partition():
    replays = "replays:\n- {subscription: v2, topics: {orders: orders.v2}}\n- {subscription: v3, topics: {orders: o}}\n"
    shop = OutboxComponent.resolve_from_yaml(SHOP + replays + "archive: {url: /srv/archive}\n")
    loaded = outbox_definitions(shop)
    found = loaded.resolve_asset_graph().get(shop.replay_key)
    assert found.key == dg.AssetKey(["replay", "shop_replay"])
    assert found.partitions_def.get_partition_keys() == ["v2", "v3"]
    assert found.parent_keys == {shop.outbox_key, shop.archive_key}
    assert loaded.resolve_job_def("shop_replay_subscription").partitions_def == found.partitions_def
    with pytest.raises(ValidationError, match="names the subscription v2 twice"):
        OutboxComponent.resolve_from_yaml(SHOP + replays.replace("v3", "v2"))


def test_outboxes_live_side_by_side():
    others = outbox_definitions(OutboxSettings(name="other", topics=["else"]))
    both = dg.Definitions.merge(defs(), outbox_definitions(OutboxComponent.resolve_from_yaml(SHOP)), others)
    assert {"outbox/flights_outbox", "outbox/shop_outbox", "outbox/other_outbox"} <= keys(both)
    assert both.get_repository_def()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("name: shop", "topics"),
        ("name: shop\ntopics: []", "topics"),
        ("name: a shop\ntopics: [orders]", "name"),
        ("name: shop\ntopics: [orders]\ntables: x", "tables"),
        ("name: shop\ntopics: [orders]\ndaemon: {runs: 0}", "runs"),
        ("name: shop\ntopics: [orders]\ndsn_variable: host=db password=x", "dsn_variable"),
    ],
)
def test_a_wrong_line_is_named(line, named):
    with pytest.raises((ResolutionException, ValueError), match=named):
        OutboxComponent.resolve_from_yaml(line)


def test_a_run_may_not_be_taken_for_dead_between_two_beats():
    with pytest.raises(ValueError, match="three times"):
        DaemonSettings(heartbeat_every_seconds=10)


def test_a_password_in_the_clear_is_refused_before_dagster_stores_it():
    for dsn in ("host=db password=canary-7f", "postgresql://u:canary-7f@db/x", "host=db 'canary-7f"):
        with pytest.raises(ConfigError, match="EnvVar") as caught:
            dg.Definitions(resources={"harvester": HarvesterResource(dsn=dsn)}).get_repository_def()
        assert "canary" not in str(caught.value)


def test_of_a_variable_only_the_name_is_stored(monkeypatch):
    monkeypatch.setenv("SHOP_DSN", "host=db dbname=shop user=u password=canary-7f")
    shop = OutboxComponent.resolve_from_yaml(SHOP)
    resource = outbox_definitions(shop).resources["shop_harvester"]
    assert "canary" not in repr(resource) + str(resource.get_resource_definition().config_schema.default_value)
    read = resource.process_config_and_initialize()
    config = read.config(leadership="solo")
    assert "canary-7f" in config.data_source.conninfo()
    assert config.outbox_table == "sales.outbox"
    assert "canary" not in repr(config)


def test_a_configuration_file_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"no configuration file /nowhere/reaper\.yaml"):
        HarvesterResource(config_file="/nowhere/reaper.yaml").config()
    monkeypatch.setenv("HARVEST_CONFIG", "/nowhere/else.yaml")
    with pytest.raises(ConfigError, match="HARVEST_CONFIG"):
        HarvesterResource().config()


def test_a_components_file_goes_before_the_variables_that_all_components_share(tmp_path, monkeypatch):
    """As under `harvest platform --definitions`, which tells everybody where its own servers are."""
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", "harvest-local")
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", "local:9092")
    monkeypatch.setenv("HARVEST_DSN", "host=local dbname=local")
    file = tmp_path / "orders.yaml"
    file.write_text(
        "leaderGroupID: orders\noutboxTable: sales\nbaseKafkaConfig: {bootstrap.servers: 'kafka:9092'}\n"
        "limits: {heartbeatTimeout: 4s}\n"
    )
    monkeypatch.setenv("HARVEST_LIMITS__HEARTBEAT_TIMEOUT_SECONDS", "3")
    settings = OutboxSettings(name="orders", topics=["orders"], config_file=str(file))
    config = outbox_definitions(settings).resources["orders_harvester"].config()
    assert (config.leader_group_id, config.outbox_table) == ("orders", "sales")
    assert config.base_kafka_config["bootstrap.servers"] == "kafka:9092"
    assert config.limits.heartbeat_timeout_seconds == 4
    assert config.data_source.conninfo() != "", "what the file does not say is as the environment has it"
    assert "local" in config.data_source.conninfo()
    stated = OutboxSettings(name="orders", topics=["orders"], config_file=str(file), table="stated")
    assert outbox_definitions(stated).resources["orders_harvester"].config().outbox_table == "stated"
    monkeypatch.setenv("HARVEST_CONFIG", str(file))
    assert HarvesterResource().config().leader_group_id == "harvest-local", "a file the environment names goes after it"


def test_the_file_is_read_when_it_is_needed(tmp_path, monkeypatch):
    file = tmp_path / "reaper.yaml"
    file.write_text("leaderGroupID: shop\noutboxTable: sales\n")
    monkeypatch.setenv("HARVEST_CONFIG", str(file))
    assert HarvesterResource().config().outbox_table == "sales"
    assert HarvesterResource(outbox_table="outbox").config().outbox_table == "outbox"


def test_topics_that_runs_drain_into_are_assets_with_a_job_of_their_own():
    drained = SHOP.replace("mode: external", "mode: drain")
    loaded = outbox_definitions(OutboxComponent.resolve_from_yaml(drained))
    dg.Definitions.validate_loadable(loaded)
    graph = loaded.resolve_asset_graph()
    for topic in ("kafka/orders_topic", "kafka/refunds_topic"):
        node = graph.get(dg.AssetKey.from_user_string(topic))
        assert node.is_materializable
        assert node.parent_keys == {dg.AssetKey(["outbox", "shop_outbox"])}
    jobs = {job.name for job in loaded.get_repository_def().get_all_jobs()}
    assert "shop_drain" in jobs
    assert "shop_harvester_daemon" not in jobs, "no run is kept alive"
    hourly = dg.ScheduleDefinition(job_name="shop_drain", cron_schedule="0 * * * *")
    dg.Definitions.validate_loadable(dg.Definitions.merge(loaded, dg.Definitions(schedules=[hourly])))


def test_topics_are_drained_after_their_writer_has_written():
    writer = SparkWriterSettings(module="json.tool", start="2013-01-01")
    settings = OutboxSettings(name="shop", topics=["orders"], writer=writer, daemon=DaemonSettings(mode="drain"))
    after_it = dg.AutomationCondition.any_deps_updated()  # `eager` would wait for every day of the writer
    topic = settings.topic_keys[0]
    loaded = outbox_definitions(settings).map_asset_specs(
        func=lambda spec: spec.replace_attributes(automation_condition=after_it) if spec.key == topic else spec
    )
    with dg.DagsterInstance.ephemeral() as instance:
        before = dg.evaluate_automation_conditions(defs=loaded, instance=instance)
        instance.report_runless_asset_event(dg.AssetMaterialization(settings.outbox_key, partition="2013-01-01"))
        after = dg.evaluate_automation_conditions(defs=loaded, instance=instance, cursor=before.cursor)
    assert after.get_num_requested(topic) == 1
