"""The audit's job: its findings are judged, and assets built on it wait while something is wrong."""

import json
from datetime import UTC, datetime

import pytest
from dagster import DagsterInstance, build_schedule_context, materialize
from psycopg.conninfo import conninfo_to_dict
from support.audit_stand_in import insert

from dagster_harvest.audit import verified_asset
from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import AuditSettings, OutboxSettings

pytestmark = pytest.mark.full


@pytest.fixture
def audit(outbox, reaper, tmp_path):
    """Run the audit's job; return the result, the verdicts, and what was materialized."""

    def run(*, allow_empty=False, **finds):
        settings = OutboxSettings(
            name="shop",
            topics=["orders"],
            config_file=str(reaper),
            audit=AuditSettings(
                engine="spark",
                module="support.audit_stand_in",
                arguments=["--finds", json.dumps(finds)] if finds else [],
                docs_folder=str(tmp_path / "docs"),
                allow_empty=allow_empty,
            ),
        )
        with DagsterInstance.ephemeral() as instance:
            job = outbox_definitions(settings).resolve_job_def("shop_audit")
            result = job.execute_in_process(instance=instance, raise_on_error=False)
            verdicts = {each.check_name: each for each in result.get_asset_check_evaluations()}
            made = {
                event.asset_key.path[-1].removeprefix("shop_"): event.materialization.metadata
                for event in result.get_asset_materialization_events()
            }
            log = [entry.to_json() for entry in instance.all_logs(result.run_id)]
        return result, verdicts, made, log

    return run


def test_folders_that_are_configured_are_handed_to_the_audit(outbox, reaper, tmp_path):
    settings = OutboxSettings(
        name="shop",
        topics=["orders"],
        config_file=str(reaper),
        audit=AuditSettings(
            engine="spark",
            module="support.audit_stand_in",
            state_folder=str(tmp_path / "state"),
            metrics_folder=str(tmp_path),
        ),
    )
    with DagsterInstance.ephemeral() as instance:
        job = outbox_definitions(settings).resolve_job_def("shop_audit")
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        log = [entry.to_json() for entry in instance.all_logs(result.run_id)]
    for given in (tmp_path / "state", tmp_path / "shop.prom"):
        assert any(str(given) in line for line in log), "the stand-in says what it was given"


def test_each_topic_is_a_partition_and_all_are_judged_together(outbox, reaper, tmp_path):
    settings = OutboxSettings(
        name="shop",
        topics=["orders", "refunds"],
        config_file=str(reaper),
        audit=AuditSettings(
            engine="spark",
            module="support.audit_stand_in",
            by_topic=True,
            docs_folder=str(tmp_path / "docs"),
            state_folder=str(tmp_path / "state"),
            metrics_folder=str(tmp_path),
        ),
    )
    definitions = outbox_definitions(settings)
    job = definitions.resolve_job_def("shop_audit")

    def audited(topic):
        result = job.execute_in_process(instance=instance, partition_key=topic, raise_on_error=False)
        log = [entry.to_json() for entry in instance.all_logs(result.run_id)]
        for given in (tmp_path / "state" / topic, tmp_path / f"shop-{topic}.prom"):
            assert any(str(given) in line for line in log)
        return result, {each.check_name: each for each in result.get_asset_check_evaluations()}

    with DagsterInstance.ephemeral() as instance:
        result, verdicts = audited("orders")
        assert not result.success
        assert failed(verdicts) >= {"lost", "unknown", "ordering", "duplicates"}, "the other was never audited"
        assert "refunds" in verdicts["lost"].description

        result, verdicts = audited("refunds")
        assert (result.success, failed(verdicts)) == (True, set())
        assert verdicts["lost"].metadata["records"].value == 200
        made = [
            event
            for event in result.get_asset_materialization_events()
            if event.asset_key.path[-1].endswith("verified")
        ]
        assert made[0].materialization.metadata["committed"].value == 200
        assert instance.get_materialized_partitions(settings.audit_key) == {"orders", "refunds"}

        # The findings of a topic's last audit count until that topic is audited again.
        insert(outbox.connection, "by hand", topics=["orders"], lost=1)
        insert(outbox.connection, "of both", topics=["orders", "refunds"])
        result, verdicts = audited("refunds")
        assert (result.success, failed(verdicts)) == (False, {"lost"})
        assert audited("orders")[0].success

        outbox.connection.execute("UPDATE harvest_audit.summary SET at = at - interval '51 hours'")
        result, verdicts = audited("orders")
        assert not result.success
        assert "the topic 'refunds' was not audited for 50 hours" in verdicts["lost"].description
        insert(outbox.connection, "empty", topics=["refunds"], committed=0, records=0)
        result, verdicts = audited("orders")
        assert "0 records committed" in verdicts["lost"].description


def test_the_schedule_asks_for_every_topic():
    settings = OutboxSettings(name="shop", topics=["orders", "refunds"], audit=AuditSettings(by_topic=True))
    repository = outbox_definitions(settings).get_repository_def()
    schedule = repository.get_schedule_def("shop_nightly_audit")
    at = datetime(2013, 1, 1, 3, tzinfo=UTC)
    with build_schedule_context(scheduled_execution_time=at, repository_def=repository) as context:
        requests = schedule.evaluate_tick(context).run_requests
    assert [each.partition_key for each in requests] == ["orders", "refunds"]
    assert len({each.run_key for each in requests}) == 2
    fresh = {key.path[-1] for key, spec in specs(repository).items() if spec.freshness_policy is not None}
    assert fresh == {"shop_audit_verified"}


def specs(repository):
    return {key: spec for each in repository.assets_defs_by_key.values() for key, spec in each.specs_by_key.items()}


def failed(verdicts):
    return {name for name, each in verdicts.items() if not each.passed}


def test_a_clean_audit_renews_what_is_verified(audit, tmp_path, dsn):
    result, verdicts, made, log = audit()
    assert result.success
    assert set(verdicts) == {"lost", "unknown", "ordering", "duplicates", "schema", "expectations"}
    assert failed(verdicts) == set()
    assert set(made) == {"audit", "audit_verified"}
    assert made["audit_verified"]["records"].value == 100
    assert made["audit"]["audit_id"].value == f"shop-{result.run_id}"
    assert made["audit"]["last_audits"].value.startswith("![the last audits](data:image/png;base64,")
    assert verdicts["expectations"].metadata["data_docs"].value == str(tmp_path / "docs" / "shop" / "index.html")
    assert (tmp_path / "docs" / "shop" / "index.html").is_file()
    password = conninfo_to_dict(dsn)["password"]
    assert not any(password in line for line in log)
    assert any("orders" in line for line in log), "the job's own words are in the run's log"


@pytest.mark.parametrize(("found", "name"), [("lost", "lost"), ("unknown", "unknown"), ("reordered", "ordering")])
def test_what_is_wrong_fails_its_check_and_blocks_what_is_built_on_it(audit, found, name):
    result, verdicts, made, _ = audit(**{found: 1})
    assert failed(verdicts) == {name}
    assert "audit_verified" not in made
    assert not result.success
    failure = result.failure_data_for_node("shop_audit_checks").user_failure_data
    assert failure.description.startswith("the audit of shop did not pass: 1 of 100 records are ")


def test_a_copy_by_the_next_term_blocks_nothing(audit):
    result, verdicts, made, _ = audit(duplicates_cross_epoch=3)
    assert failed(verdicts) == {"duplicates"}
    assert result.success
    assert "audit_verified" in made


def test_an_audit_that_compared_nothing_fails_unless_that_is_allowed(audit):
    result, verdicts, made, _ = audit(committed=0, records=0)
    assert not result.success
    assert (verdicts, made) == ({}, {})
    failure = result.failure_data_for_node("audit__shop_audit").user_failure_data
    assert "0 records committed" in failure.description
    result, verdicts, made, _ = audit(allow_empty=True, committed=0, records=0)
    assert result.success
    assert failed(verdicts) == set()
    assert made["audit_verified"]["committed"].value == 0


def test_verified_alone_judges_the_last_audit(outbox, reaper):
    """Without the checks, which block it in a run of the whole job."""
    settings = OutboxSettings(name="shop", topics=["orders"], config_file=str(reaper))
    verified, resources = verified_asset(settings, settings.audited), outbox_definitions(settings).resources

    def materialized():
        with DagsterInstance.ephemeral() as instance:
            return materialize([verified], instance=instance, resources=resources, raise_on_error=False).success

    assert not materialized(), "nothing was audited yet"
    for audit_id, (numbers, is_verified) in enumerate(
        [({}, True), ({"lost": 1}, False), ({"duplicates_cross_epoch": 2}, True), ({"committed": 0}, False)]
    ):
        insert(outbox.connection, str(audit_id), topics=["orders"], **numbers)
        assert materialized() == is_verified, numbers


def test_what_no_other_check_judges_the_suite_does(audit):
    _, verdicts, _, _ = audit(backlog_age_seconds=301)
    assert failed(verdicts) == set(), "the age of the backlog has a check of its own"
    assert verdicts["expectations"].metadata["failed_and_judged_elsewhere"].value == 1


def test_an_audit_that_fails_says_why_in_the_run(audit):
    result, _, made, _ = audit(error="no broker answers: check bootstrap.servers")
    assert not result.success
    assert made == {}
    failure = result.failure_data_for_node("audit__shop_audit").user_failure_data
    assert "no broker answers" in failure.description


def test_an_audit_that_leaves_no_summary_is_no_audit(audit):
    result, _, made, _ = audit(nothing=1)
    assert not result.success
    assert made == {}
    failure = result.failure_data_for_node("audit__shop_audit").user_failure_data
    assert "left no summary" in failure.description
