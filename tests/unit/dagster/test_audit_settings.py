"""What the settings of an audit make of its definitions: none, another engine, a schedule, a pool, missing packages."""

import json
import subprocess
import sys
import textwrap

import dagster as dg
import pytest
from pydantic import ValidationError

from dagster_harvest import extras
from dagster_harvest.commands import audit_command
from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.jobs import AuditOpSettings, Ops
from dagster_harvest.outbox_state import STATE_CHECKS
from dagster_harvest.settings import AuditSettings, OutboxSettings
from harvest_lib.errors import ConfigError, install_hint

pytestmark = pytest.mark.quick


def shop(**settings):
    return OutboxSettings(**{"name": "shop", "topics": ["orders"], **settings})


def names(definitions):
    repository = definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    return {
        "assets": {key.to_user_string() for key in graph.get_all_asset_keys()},
        "checks": {f"{key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys},
        "jobs": {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")},
        "schedules": {each.name for each in repository.schedule_defs},
    }


def test_without_an_audit_nothing_of_it_is_there():
    component = OutboxComponent.resolve_from_yaml("name: shop\ntopics: [orders]\naudit: null\n")
    found = names(outbox_definitions(component))
    assert found == {
        "assets": {"outbox/shop_outbox", "kafka/orders_topic"},
        "checks": {f"outbox/shop_outbox: {name}" for name in (*STATE_CHECKS, "schema")},
        "jobs": {"shop_harvester_daemon"},
        "schedules": set(),
    }


def test_without_a_cron_only_the_schedule_is_missing():
    component = OutboxComponent.resolve_from_yaml("name: shop\ntopics: [orders]\naudit: {cron: null}\n")
    found, whole = names(outbox_definitions(component)), names(outbox_definitions(shop()))
    assert whole["schedules"] == {"shop_nightly_audit"}
    assert found == {**whole, "schedules": set()}


def test_an_audit_is_one_asset_and_what_it_has_verified():
    graph = outbox_definitions(shop()).resolve_asset_graph()
    audit, verified = shop().audit_key, shop().verified_key
    assert {key for key in graph.get_all_asset_keys() if key.path[0] == "audit"} == {audit, verified}
    assert graph.get(audit).parent_keys == {shop().outbox_key, *shop().topic_keys}
    assert graph.get(verified).parent_keys == {audit}


def test_many_outboxes_are_audited_at_minutes_of_their_own():
    crons = [AuditSettings().cron_of(f"outbox_{number}") for number in range(50)]
    minutes = [int(cron.removesuffix(" 3 * * *")) for cron in crons]
    assert all(0 <= minute < 60 for minute in minutes)
    assert len(set(minutes)) >= 30, "they are spread over the hour"
    assert crons == [AuditSettings().cron_of(f"outbox_{number}") for number in range(50)], "and stay where they are"
    assert AuditSettings(cron="30 4 * * 1").cron_of("shop") == "30 4 * * 1"
    schedule = outbox_definitions(shop()).get_repository_def().get_schedule_def("shop_nightly_audit")
    assert schedule.cron_schedule == AuditSettings().cron_of("shop")


@pytest.mark.parametrize(
    ("given", "pool"),
    [
        ({}, "harvest_audits"),
        ({"tags": {"a": "b"}}, "harvest_audits"),
        ({"pool": "night"}, "night"),
        ({"pool": None}, None),
    ],
)
def test_audits_share_a_pool(given, pool):
    graph = outbox_definitions(shop(op=Ops(audit=AuditOpSettings(**given)))).resolve_asset_graph()
    assert graph.get(shop().audit_key).pools == ({pool} if pool else set())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"state_folder": "/s"}, "state_folder is of the engine spark: set `engine: spark`"),
        ({"arguments": ["--full"]}, "arguments is of the engine spark"),
        ({"module": "acme.audit"}, "module is of the engine spark"),
        ({"engine": "spark", "committed": "SELECT 1"}, "committed is of the engine harvest: set `engine: harvest`"),
        ({"engine": "flink"}, "'harvest' or 'spark'"),
    ],
)
def test_settings_of_the_other_engine_are_refused(given, message):
    with pytest.raises(ValidationError, match=message):
        AuditSettings(**given)


def test_the_command_of_the_next_step_can_be_typed():
    audit = AuditSettings(committed="SELECT id, key FROM orders")
    settings = shop(topics=["orders", "refunds"], config_file="/etc/a shop.yaml", audit=audit)
    assert audit_command(settings) == (
        "`harvest audit --topic orders,refunds --committed 'SELECT id, key FROM orders' -f '/etc/a shop.yaml'`"
    )
    with pytest.raises(ConfigError, match="the outbox shop has no audit"):
        _ = shop(audit=None).audited


# -- missing packages

ALONE = """
    import json, sys
    for name in {blocked!r}:
        sys.modules[name] = None
    from dagster_harvest.components import OutboxComponent, outbox_definitions
    try:
        component = OutboxComponent.resolve_from_yaml("name: shop\\ntopics: [orders]\\n" + {more!r})
        graph = outbox_definitions(component).resolve_asset_graph()
        print(json.dumps(sorted(key.name for key in graph.asset_check_keys)))
    except Exception as error:
        print(json.dumps(str(error)))
"""
BACKLOG = STATE_CHECKS
OF_AUDITS = ["duplicates", "lost", "ordering", "unknown"]


def loaded(blocked, more=""):
    """The names of the checks, or the error, where these packages are not installed."""
    program = textwrap.dedent(ALONE).format(blocked=list(blocked), more=more)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_with_the_extra_dagster_alone_everything_loads():
    assert loaded(extras.EXPECTATIONS) == sorted([*BACKLOG, *OF_AUDITS])


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "field", "wanted"),
    [
        ("audit: {engine: spark}\n", "audit.engine", "dagster,spark"),
        ("quality: true\n", "quality", "dagster,quality,spark"),
        ("audit: {docs_folder: /srv/docs}\n", "audit.docs_folder", "dagster,quality,spark"),
    ],
)
def test_what_settings_ask_for_and_is_not_installed_is_named_with_what_to_install(more, field, wanted):
    error = loaded(extras.EXPECTATIONS, more)
    assert "pyspark" in error
    assert field in error
    assert install_hint(wanted) in error


@pytest.mark.full
def test_without_great_expectations_the_contracts_are_checked():
    assert loaded(["great_expectations"]).count("schema") == 2
    assert "expectations" not in loaded(["great_expectations"])


def test_quality_may_be_left_out_where_it_is_installed():
    assert {key.name for key in outbox_definitions(shop(quality=False)).resolve_asset_graph().asset_check_keys} == {
        *BACKLOG,
        *OF_AUDITS,
    }


def test_the_nightly_audit_is_kept_apart_from_spark():
    spec = outbox_definitions(shop()).resolve_asset_graph().get(shop().audit_key)
    assert "spark" not in spec.kinds
    by_spark = outbox_definitions(shop(audit=AuditSettings(engine="spark")))
    assert "spark" in by_spark.resolve_asset_graph().get(shop().audit_key).kinds
    dg.Definitions.validate_loadable(by_spark)
