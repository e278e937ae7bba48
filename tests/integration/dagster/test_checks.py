"""Checks of what really stands in Postgres."""

import dagster as dg
import pytest
from dagster import DagsterInstance
from support.audit_stand_in import insert as put_audit
from support.native import Native
from support.outbox import harvest_config

from dagster_harvest.audit_results import AuditMissing, details, last_summary, sample
from dagster_harvest.checks import audit_checks
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import AuditSettings, OutboxSettings, Thresholds
from dagster_harvest.state_checks import state_checks
from harvest_lib.errors import OutboxTableError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.gate

SHOP = OutboxSettings(name="shop", topics=["t"])


@pytest.fixture
def insert(outbox):
    return lambda audit_id="a", **numbers: put_audit(outbox.connection, audit_id, **numbers)


@pytest.fixture
def checked(reaper):
    """Evaluate checks; return the verdict on each: passed, severity, description."""

    def evaluate(make, **settings):
        shop = OutboxSettings(name="shop", topics=["t"], **settings)
        checks = make(shop)
        assets = {key.asset_key for key in checks.check_keys}
        definitions = dg.Definitions(
            assets=[dg.AssetSpec(key) for key in assets],
            asset_checks=[checks],
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.checks(checks))],
            resources={shop.resource_key: HarvesterResource(config_file=str(reaper))},
        )
        with DagsterInstance.ephemeral() as instance:
            result = definitions.resolve_job_def("checks").execute_in_process(instance=instance, raise_on_error=False)
            return {each.check_name: each for each in result.get_asset_check_evaluations()}

    return evaluate


def failed(evaluations):
    return {name for name, each in evaluations.items() if not each.passed}


def test_an_audit_that_compared_nothing_fails_every_check_unless_that_is_allowed(checked, insert):
    insert(committed=0, records=0)
    evaluations = checked(audit_checks)
    assert failed(evaluations) == {"lost", "unknown", "ordering", "duplicates"}
    assert "no committed record" in evaluations["lost"].description
    assert failed(checked(audit_checks, audit=AuditSettings(allow_empty=True))) == set()


def test_each_finding_of_an_audit_fails_exactly_its_check(checked, insert):
    insert()
    assert failed(checked(audit_checks)) == set()
    for found, name in {
        "lost": "lost",
        "unknown": "unknown",
        "reordered": "ordering",
        "duplicates_separated": "duplicates",
    }.items():
        insert(audit_id=found, **{found: 1})
        evaluations = checked(audit_checks)
        assert failed(evaluations) == {name}
        assert evaluations[name].metadata[found].value == 1
        assert evaluations[name].metadata["audit_id"].value == found


def test_without_an_audit_nothing_is_taken_for_proved(checked, outbox):
    evaluations = checked(audit_checks)
    assert failed(evaluations) == {"lost", "unknown", "ordering", "duplicates"}
    assert "nothing was audited yet" in evaluations["lost"].description
    assert "materialize" in evaluations["lost"].metadata["next_step"].value


def test_a_table_that_is_none_of_audits_is_refused(outbox, insert):
    with pytest.raises(AuditMissing):
        last_summary(outbox.connection, SHOP, OutboxTable.parse("outbox"))
    insert()
    outbox.connection.execute("ALTER TABLE harvest_audit.summary DROP COLUMN lost")
    with pytest.raises(OutboxTableError, match="lacks lost"):
        last_summary(outbox.connection, SHOP, OutboxTable.parse("outbox"))


def test_the_last_audit_is_the_one_that_counts(outbox, insert):
    insert(audit_id="old", lost=5)
    insert(audit_id="new")
    assert last_summary(outbox.connection, SHOP, OutboxTable.parse("outbox")).audit_id == "new"
    outbox.connection.execute("CREATE TABLE harvest_audit.lost (audit_id text, record text, since timestamptz)")
    outbox.connection.execute("INSERT INTO harvest_audit.lost VALUES ('old', '10'), ('new', '2'), ('old', '3|4')")
    counts = details(outbox.connection, "old")
    assert counts == {"lost": 2, "duplicates": 0, "reorderings": 0, "unknown": 0}
    shown = sample(outbox.connection, ["old"], "lost")
    assert shown.markdown == "| record | since |\n| --- | --- |\n| 10 |  |\n| 3\\|4 |  |"
    assert shown.records == ["10", "3|4"]
    assert sample(outbox.connection, ["none"], "lost") is None
    assert sample(outbox.connection, ["old"], "unknown") is None, "there is no such table"


def test_of_several_outboxes_in_a_database_each_is_judged_by_its_own_audit(outbox, insert):
    """Also where the audit of another came later, was run by hand, and the tables are called the same."""
    connection = outbox.connection
    connection.execute("CREATE SCHEMA eu")
    connection.execute("CREATE TABLE eu.outbox (LIKE outbox)")

    def last(table, *topics):
        settings = OutboxSettings(name="any", topics=topics)
        return last_summary(connection, settings, OutboxTable.parse(table)).audit_id

    insert(audit_id="ours", topics=["orders", "refunds"])
    insert(audit_id="theirs", outbox='"eu"."outbox"', topics=["orders"], lost=5)
    assert last("eu.outbox", "orders") == "theirs"
    assert last("outbox", "orders") == last("public.outbox", "refunds", "orders") == "ours"
    insert(audit_id="half", topics=["orders"])
    assert last("outbox", "orders", "refunds") == "ours", "the last one left a topic out"
    connection.execute("DELETE FROM harvest_audit.summary WHERE audit_id = 'theirs'")
    with pytest.raises(AuditMissing, match=r"no audit of \"eu\".\"outbox\" and all of orders"):
        last("eu.outbox", "orders")


def test_an_old_and_long_backlog_is_seen(checked, outbox):
    assert failed(checked(state_checks)) == {"leader"}, "nothing harvests"
    outbox.fill(30)
    thresholds = Thresholds(backlog_warn_records=30)
    evaluations = checked(state_checks, thresholds=thresholds)
    assert failed(evaluations) == {"leader", "backlog_size"}
    assert evaluations["backlog_size"].metadata["value"].value == 30
    outbox.connection.execute("UPDATE outbox SET create_time = now() - interval '11 minutes'")
    evaluations = checked(state_checks)
    assert failed(evaluations) == {"leader", "backlog_age"}
    assert evaluations["backlog_age"].severity is dg.AssetCheckSeverity.ERROR


def test_an_outbox_that_cannot_be_read_fails_its_checks_and_says_why(checked, outbox):
    outbox.connection.execute("DROP TABLE outbox")
    evaluations = checked(state_checks)
    assert failed(evaluations) == {"backlog_age", "backlog_size", "parked", "leader"}
    assert 'there is no table "outbox" in this database' in evaluations["backlog_age"].description


def test_what_waits_in_a_native_table_is_what_the_subscription_has_not_seen(
    dsn, make_topic, bootstrap_servers, group_id
):
    topic = make_topic()
    native = Native(dsn)
    append(native.connection, [OutboxRecord(topic=topic, key="k", value="v")] * 5)
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo")
    assert StatusReader(native.connection, config).waiting().records == 5
    assert Harvest(config).drain(60).records == 5
    seen = StatusReader(native.connection, config).waiting()
    assert (seen.records, seen.age_seconds) == (0, 0.0)
    assert seen.epoch >= 1
    append(native.connection, [OutboxRecord(topic=topic, key="k", value="v")] * 2)
    assert StatusReader(native.connection, config).waiting().records == 2
    native.connection.close()
