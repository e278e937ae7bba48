"""Spark under Dagster Pipes: a partition is a day, rows and records are committed once, numbers come back."""

import io
import zipfile
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster import DagsterInstance
from psycopg.conninfo import conninfo_to_dict

from dagster_harvest import example_flights
from dagster_harvest.checks import Verdict
from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.quality import contract_checks
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.writer import written_assets
from dagster_harvest.writer_settings import RecordColumns, SparkWriterSettings
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
def run(outbox, reaper, monkeypatch):
    """Run the load job of a writer over some partitions; return the result and the lines of the log."""
    java = find_java(default_state())
    monkeypatch.setenv("JAVA_HOME", str(java))
    found = jars.resolve(jars.POSTGRES_JDBC, default_state())
    monkeypatch.setenv("HARVEST_SPARK_JARS", ",".join(map(str, found)))

    def materialize(name, writer, **tags):
        settings = OutboxSettings(name=name, topics=[name], config_file=str(reaper), writer=writer)
        with DagsterInstance.ephemeral() as instance:
            result = dg.materialize(
                [written_assets(settings, settings.writer)],
                instance=instance,
                tags={f"dagster/{name}": value for name, value in tags.items()},
                resources=outbox_definitions(settings).resources,
                raise_on_error=False,
            )
            log = [entry.to_json() for entry in instance.all_logs(result.run_id)]
        return result, log

    return materialize


def demo(**changed):
    """Return the writer of the example, with changes."""
    file = Path(example_flights.__file__).parent / "defs" / "flights" / "defs.yaml"
    attributes = yaml.safe_load(file.read_text())["attributes"]
    return OutboxComponent.resolve_from_yaml(yaml.safe_dump(attributes)).writer.model_copy(update=changed)


@pytest.fixture
def load(run, flights_file):
    def days(first, last=None, file=flights_file):
        writer = demo(arguments=[*demo().arguments, "--source", str(file)])
        return run("flights", writer, asset_partition_range_start=first, asset_partition_range_end=last or first)

    return days


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
    assert (metadata["batches"].value, metadata["batches_promoted_before"].value) == (3, 1)
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
    settings = OutboxSettings(name="flights", topics=["flights"], config_file=str(reaper), writer=demo())
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


FRAMES = """
def frame(spark, start, end):
    hours = (end - start).total_seconds() / 3600
    at = f"timestamp '{start:%Y-%m-%d %H:%M:%S}'"
    return spark.sql(f"SELECT id AS order_id, {at} AS at, double({hours}) AS hours FROM range({start.day})")


def of_the_run(spark):
    return spark.sql("SELECT 1 AS order_id, 2 AS hours")


def empty(spark, **given):
    return spark.sql("SELECT 1 AS order_id").where("false")


def broken(start):
    raise LookupError(f"no orders of {start:%d %B}")


def nothing(spark):
    return None
"""


@pytest.fixture
def frames(tmp_path, monkeypatch, unique):
    """Write a user's module; return a function that makes the writer of one of its functions."""
    module = unique("acme_orders")
    (tmp_path / f"{module}.py").write_text(FRAMES)
    monkeypatch.syspath_prepend(str(tmp_path))

    def writer(name, **attributes):
        records = RecordColumns(key="order_id", fixed_headers={"event-type": "placed"}, batch_header="batch")
        wanted = {"records": records, "start": "2026-01-01", **attributes}
        return SparkWriterSettings(function=f"{module}.{name}", **wanted)

    return writer


def by_partition(result):
    made = [event.materialization for event in result.get_asset_materialization_events()]
    return {each.partition: {name: value.value for name, value in each.metadata.items()} for each in made}


def test_a_function_of_the_users_fills_table_and_outbox_a_batch_for_each_day(run, frames, outbox):
    outbox.connection.execute(
        "CREATE TABLE orders (order_id bigint, at timestamptz, hours double precision, batch text)"
    )
    writer = frames("frame", table="orders", batch_column="batch")
    days = {"asset_partition_range_start": "2026-01-02", "asset_partition_range_end": "2026-01-03"}
    result, _ = run("orders", writer, **days)
    assert result.success
    found = by_partition(result)
    assert {day: (each["rows"], each["status"]) for day, each in found.items()} == {
        "2026-01-02": (2, "promoted"),
        "2026-01-03": (3, "promoted"),
    }
    assert outbox.count() == 5
    rows = outbox.connection.execute("SELECT batch, count(*), min(hours) FROM orders GROUP BY 1 ORDER BY 1").fetchall()
    assert rows == [("orders-2026-01-02", 2, 24), ("orders-2026-01-03", 3, 24)]

    result, _ = run("orders", writer, asset_partition_range_start="2026-01-01", asset_partition_range_end="2026-01-03")
    assert result.success
    assert {day: each["status"] for day, each in by_partition(result).items()} == {
        "2026-01-01": "promoted",
        "2026-01-02": "already-promoted",
        "2026-01-03": "already-promoted",
    }
    assert outbox.count() == 6


def test_hours_and_runs_without_partitions_are_batches_too(run, frames, outbox):
    result, _ = run("orders", frames("frame", partitions="hourly"), partition="2026-01-04-05:00")
    assert result.success
    assert by_partition(result)["2026-01-04-05:00"]["dagster/row_count"] == 4
    result, _ = run("orders", frames("of_the_run", partitions="none", start=None))
    assert result.success
    batches = outbox.connection.execute("SELECT batch, rows FROM outbox_batches ORDER BY batch").fetchall()
    assert batches == sorted([("orders-2026-01-04-05:00", 4), (f"orders-{result.run_id}", 1)])


def test_a_partition_without_rows_is_empty_and_no_error(run, frames, outbox):
    result, _ = run("orders", frames("empty"), partition="2026-01-01")
    assert result.success
    assert (by_partition(result)["2026-01-01"]["status"], outbox.count()) == ("empty", 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [("broken", "LookupError: no orders of 01 January"), ("nothing", "returned NoneType, not a DataFrame")],
)
def test_a_function_that_returns_no_frame_is_what_the_run_says(run, frames, outbox, name, message):
    writer = frames(name)
    result, _ = run("orders", writer, partition="2026-01-01")
    failure = result.failure_data_for_node("orders_written").user_failure_data
    assert failure.description.startswith(f"{writer.function} failed: ")
    assert message in failure.description
    assert outbox.count() == 0
