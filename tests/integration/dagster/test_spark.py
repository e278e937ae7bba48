"""Spark under Dagster Pipes: a partition is a day, rows and records are committed once, numbers come back."""

import io
import zipfile

import dagster as dg
import pytest
from dagster import DagsterInstance
from psycopg.conninfo import conninfo_to_dict

from dagster_harvest.assets import written_assets
from dagster_harvest.checks import Verdict
from dagster_harvest.components import outbox_definitions
from dagster_harvest.quality import contract_checks
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings, SparkWriterSettings
from harvest_lib.local_stack import jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state
from harvest_lib.spark.flights.source import published_source

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = {"2013-01-01": 40, "2013-01-02": 30, "2013-01-03": 20}


@pytest.fixture(scope="module")
def flights_file(tmp_path_factory):
    """A few flights of each of the first days of January."""
    with zipfile.ZipFile(published_source()) as archive, archive.open("flights.csv") as packed:
        lines = io.TextIOWrapper(packed)
        text = next(lines)
        for day, count in ROWS.items():
            begins = ",".join(str(int(part)) for part in day.split("-")) + ","
            text += "".join(next(line for line in lines if line.startswith(begins)) for _ in range(count))
    file = tmp_path_factory.mktemp("source") / "flights.csv"
    file.write_text(text)
    return file


@pytest.fixture
def load(outbox, reaper, flights_file, monkeypatch):
    java = find_java(default_state())
    monkeypatch.setenv("JAVA_HOME", str(java))
    found = jars.resolve(jars.POSTGRES_JDBC, default_state(), java)
    monkeypatch.setenv("HARVEST_SPARK_JARS", ",".join(map(str, found)))

    def run(first, last=None, file=flights_file):
        settings = OutboxSettings(
            name="flights", topics=["flights"], config_file=str(reaper), writer=SparkWriterSettings(file=str(file))
        )
        days = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
        with DagsterInstance.ephemeral() as instance:
            result = dg.materialize(
                [written_assets(settings, settings.writer)],
                instance=instance,
                tags=days,
                resources=outbox_definitions(settings).resources,
                raise_on_error=False,
            )
            log = [entry.to_json() for entry in instance.all_logs(result.run_id)]
        return result, log

    return run


def test_a_day_is_loaded_and_a_backfill_of_three_loads_the_others(load, outbox, dsn):
    result, log = load("2013-01-02")
    assert result.success
    assert outbox.count() == ROWS["2013-01-02"]
    made = {event.asset_key.to_user_string(): event for event in result.get_asset_materialization_events()}
    assert set(made) == {"postgres/flights", "outbox/flights_outbox"}
    metadata = made["postgres/flights"].materialization.metadata
    assert metadata["promoted_rows"].value == ROWS["2013-01-02"]
    assert metadata["staging_rows_per_second"].value > 0
    assert any("flights-2013-01-02" in line for line in log), "Spark's own lines are in the run's log"
    password = conninfo_to_dict(dsn)["password"]
    assert not any(password in line for line in log)

    result, _ = load("2013-01-01", "2013-01-03")
    assert result.success
    assert outbox.count() == sum(ROWS.values())
    metadata = result.get_asset_materialization_events()[0].materialization.metadata
    assert (metadata["days"].value, metadata["days_promoted_before"].value) == (3, 1)
    days = outbox.connection.execute("SELECT batch, rows FROM flights_batches ORDER BY batch").fetchall()
    assert days == [(f"flights-{day}", rows) for day, rows in ROWS.items()]


def test_a_day_without_flights_promotes_nothing(load, outbox):
    result, _ = load("2013-07-01")
    assert result.success
    assert outbox.count() == 0


def test_a_file_that_is_not_there_is_what_the_run_says(load, outbox, tmp_path):
    result, _ = load("2013-01-01", file=tmp_path / "none.csv")
    assert not result.success
    failure = result.failure_data_for_node("flights_written").user_failure_data
    assert "none.csv cannot be read" in failure.description
    assert outbox.count() == 0


def test_a_column_of_wrong_type_fails_the_contract_of_the_rows_and_nothing_else(load, outbox, reaper):
    assert load("2013-01-01")[0].success
    settings = OutboxSettings(
        name="flights", topics=["flights"], config_file=str(reaper), writer=SparkWriterSettings(file="x")
    )
    checks = contract_checks(settings)

    def verdicts() -> dict[str, Verdict]:
        definitions = dg.Definitions(
            assets=[dg.AssetSpec(key.asset_key) for each in checks for key in each.check_keys],
            asset_checks=checks,
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.checks(*checks))],
            resources={settings.resource_key: HarvesterResource(config_file=str(reaper))},
        )
        with DagsterInstance.ephemeral() as instance:
            result = definitions.resolve_job_def("checks").execute_in_process(instance=instance, raise_on_error=False)
            return {each.asset_key.to_user_string(): each for each in result.get_asset_check_evaluations()}

    assert all(each.passed for each in verdicts().values())
    outbox.connection.execute("ALTER TABLE flights ALTER COLUMN distance TYPE text USING distance || ' miles'")
    after = verdicts()
    assert not after["postgres/flights"].passed
    assert "distance" in after["postgres/flights"].description
    assert after["outbox/flights_outbox"].passed
