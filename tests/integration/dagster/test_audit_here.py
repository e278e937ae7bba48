"""The nightly audit in the run's own process: its checks, what a failed check shows, and that it needs no Spark."""

import json
import shlex
import subprocess
import sys
import textwrap

import psycopg
import pytest
from dagster import AssetCheckSeverity, DagsterInstance
from support.audited import Audited, of_one_key, write
from support.scraping import parsed
from support.subscribed import Subscribed

from dagster_harvest import extras
from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import AuditSettings, OutboxSettings
from harvest_lib.errors import FOUND_EXIT_CODE

pytestmark = pytest.mark.gate

RECORDS = 30


@pytest.fixture
def audited(dsn, make_topic, bootstrap_servers, group_id):
    """An outbox whose records were delivered."""
    outbox = Subscribed(dsn, make_topic(partitions=2), bootstrap_servers, group_id)
    found = Audited(outbox, bootstrap_servers)
    found.deliver(RECORDS, delivery="transactional")
    yield found
    outbox.close()


@pytest.fixture
def settings(audited, reaper):
    return OutboxSettings(name="shop", topics=[audited.outbox.topic], config_file=str(reaper), quality=False)


def run(settings):
    """Run the audit's job; return its result, the verdicts by check, and the metadata by asset."""
    with DagsterInstance.ephemeral() as instance:
        job = outbox_definitions(settings).resolve_job_def("shop_audit")
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        verdicts = {each.check_name: each for each in result.get_asset_check_evaluations()}
        events = result.get_asset_materialization_events()
    return result, verdicts, {each.asset_key.path[-1]: each.materialization.metadata for each in events}


@pytest.mark.full
def test_an_audit_that_finds_nothing_renews_what_is_verified(settings):
    result, verdicts, made = run(settings)
    assert result.success
    assert {name: each.passed for name, each in verdicts.items()} == dict.fromkeys(
        ("lost", "unknown", "ordering", "duplicates"), True
    )
    assert made["shop_audit"]["committed"].value == made["shop_audit_verified"]["records"].value == RECORDS
    assert {made["shop_audit"][f"{name}_rows"].value for name in ("lost", "duplicates", "reorderings", "unknown")} == {
        0
    }
    assert made["shop_audit"]["audit_id"].value == f"shop-{result.run_id}"


@pytest.mark.full
def test_a_failed_check_shows_records_and_the_next_step_and_the_run_says_the_numbers(audited, settings, dsn):
    outbox = audited.outbox
    last = of_one_key(audited.log())[-1]
    audited.produce(last)
    audited.produce(last, outbox_id=10**9)
    write(outbox, *(["lost"] * 25))
    outbox.connection.execute("UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot()")
    result, verdicts, made = run(settings)
    assert not result.success
    assert {name for name, each in verdicts.items() if not each.passed} == {"lost", "unknown", "duplicates"}
    failure = result.failure_data_for_node("shop_audit_checks").user_failure_data
    assert failure.description == (
        "the audit of shop did not pass: "
        f"25 of {RECORDS + 2} records are committed and not in Kafka, such as record {RECORDS + 1}, {RECORDS + 2}, "
        f"{RECORDS + 3}; 1 of {RECORDS + 2} records are in Kafka and never committed, or not with that value, "
        f"such as record {10**9}"
    )
    assert set(made) == {"shop_audit"}, "what is verified waits"
    shown = verdicts["lost"].metadata
    assert shown["records_found"].value == ", ".join(str(RECORDS + number) for number in range(1, 21))
    assert shown["sample"].value.count("\n") == 21
    assert made["shop_audit"]["lost_rows"].value == 25
    assert made["shop_audit"]["lost_sample"].value == shown["sample"].value
    assert verdicts["duplicates"].severity is AssetCheckSeverity.ERROR
    query, command = shown["next_step"].value.split("; after a repair ")
    with psycopg.connect(dsn) as connection:
        assert len(connection.execute(query).fetchall()) == 25
    harvest, *arguments = shlex.split(command.strip("`"))
    done = subprocess.run(
        [sys.executable, "-m", "harvest_lib.cli", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert (harvest, done.returncode) == ("harvest", FOUND_EXIT_CODE), done.stderr
    assert "25" in done.stdout


def test_each_topic_may_be_audited_alone(audited, settings, make_topic, bootstrap_servers, tmp_path):
    audit = AuditSettings(by_topic=True, metrics_folder=str(tmp_path))
    topic = audited.outbox.topic
    settings = settings.model_copy(update={"audit": audit})
    with DagsterInstance.ephemeral() as instance:
        job = outbox_definitions(settings).resolve_job_def("shop_audit")
        assert job.execute_in_process(instance=instance, partition_key=topic).success
        assert instance.get_materialized_partitions(settings.audit_key) == {topic}
    found = parsed((tmp_path / f"shop-{topic}.prom").read_text())
    assert found["harvest_audit_failed", (topic,)] == 0


ALONE = """
    import json, sys
    for name in {blocked!r}:
        sys.modules[name] = None
    from dagster import DagsterInstance
    from dagster_harvest.components import outbox_definitions
    from dagster_harvest.settings import OutboxSettings
    settings = OutboxSettings(name="shop", topics=[{topic!r}], config_file={file!r})
    with DagsterInstance.ephemeral() as instance:
        result = outbox_definitions(settings).resolve_job_def("shop_audit").execute_in_process(instance=instance)
        print(json.dumps({{each.check_name: each.passed for each in result.get_asset_check_evaluations()}}))
"""


@pytest.mark.full
def test_with_the_extra_dagster_alone_the_audit_runs(audited, settings):
    program = textwrap.dedent(ALONE).format(
        blocked=[*extras.EXPECTATIONS, "py4j", "pyarrow"],
        topic=audited.outbox.topic,
        file=settings.config_file,
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout.splitlines()[-1])
    assert verdicts == dict.fromkeys(("lost", "unknown", "ordering", "duplicates"), True)
