"""The flights job on real Spark and real Postgres, with slices of the real file."""

import csv
import io
import json
import random
import time
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from support.sink import swallow
from support.waiting import eventually

from harvest_lib.errors import DatabaseError, OutboxTableError
from harvest_lib.spark.errors import BatchConflict, PromotionRefused, SourceError
from harvest_lib.spark.flights.by_month import main
from harvest_lib.spark.flights.job import flight_records, prepare_flights
from harvest_lib.spark.flights.source import HEADER, FlightMonth, batches_of, flights_of, published_source, read_flights
from harvest_lib.spark.sink import queries
from harvest_lib.spark.sink.batches import load_batch
from harvest_lib.spark.sink.content import Content
from harvest_lib.spark.sink.database import JdbcTarget, Tables, connect, jdbc_target
from harvest_lib.spark.sink.plan import WritePlan
from harvest_lib.spark.sink.promotion import promote
from harvest_lib.spark.sink.report import BatchReport
from harvest_lib.spark.sink.staging import stage
from harvest_lib.spark.sink.staging_tables import Staged

pytestmark = [pytest.mark.full, pytest.mark.spark]

DEADLINE_SECONDS = 150  # a Spark of its own may have to start on a busy machine
OUTBOX = """
CREATE TABLE {} (
    id BIGSERIAL PRIMARY KEY, create_time TIMESTAMPTZ NOT NULL, kafka_topic VARCHAR(249) NOT NULL,
    kafka_key VARCHAR(100) NOT NULL, kafka_value VARCHAR(10000), kafka_header_keys TEXT[] NOT NULL,
    kafka_header_values TEXT[] NOT NULL, leader_id UUID)
"""


@pytest.fixture(scope="module")
def slice_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 flights of January, shuffled, ten of them without a tail number, and the first 100 of October."""
    with zipfile.ZipFile(published_source()) as archive, archive.open("flights.csv") as packed:
        lines = io.TextIOWrapper(packed)
        header = next(lines)
        january = [next(lines) for _ in range(990)]
        january += [next(line for line in lines if line.split(",")[11] == "NA") for _ in range(10)]
        october = [next(line for line in lines if line.startswith("2013,10,")) for _ in range(100)]
    random.Random(1).shuffle(january)
    file = tmp_path_factory.mktemp("source") / "slice [1] of flights.csv"
    file.write_text(header + "".join(january + october))
    return file


@pytest.fixture(scope="module")
def flights(spark: SparkSession, slice_file: Path) -> DataFrame:
    return read_flights(spark, slice_file)


@pytest.fixture(scope="module")
def batches(flights: DataFrame, slice_file: Path) -> dict[int, FlightMonth]:
    return {batch.month: batch for batch in batches_of(flights, months=[1, 3, 10], file=slice_file, source=slice_file)}


def run_named(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job on a database of its own, with a connection to look at it."""

    dsn: str = field(repr=False)
    plan: WritePlan
    target: JdbcTarget
    look: psycopg.Connection
    flights: DataFrame

    def load(self, batch: FlightMonth) -> BatchReport:
        rows = flights_of(self.flights, batch)
        with connect(self.dsn) as connection:
            return load_batch(
                rows, batch.id, connection=connection, target=self.target, plan=self.plan, content=batch.content
            )

    def stage(self, batch: FlightMonth, run: str = "a run") -> None:
        stage(flights_of(self.flights, batch), batch=batch.id, run=run_named(run), target=self.target, by_options=True)

    def promote(self, batch: FlightMonth, run: str = "a run") -> bool:
        with connect(self.dsn) as connection:
            staged = Staged(batch=batch.id, run=run_named(run))
            promoted = promote(connection, batch.id, batch.content, staged=staged, plan=self.plan)
        return promoted is not None and promoted[1]

    def run_sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        cursor = self.look.execute(self.plan.tables.fill(sql.SQL(statement)), values)
        return cursor.fetchall() if cursor.description else []

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        names = ["business", "outbox", "staging", "ledger"]
        return {name: int(str(self.run_sql(f"SELECT count(*) FROM {{{name}}}")[0][0])) for name in names}  # noqa: S608


@pytest.fixture
def job(dsn: str, flights: DataFrame) -> Iterator[Job]:
    tables = Tables.named(business="flights", outbox="outbox")
    with connect(dsn) as connection:
        connection.execute(OUTBOX.format("outbox"))
        plan = prepare_flights(connection, tables, flight_records("flights"))
        target = jdbc_target(connection, tables)
        yield Job(dsn=dsn, plan=plan, target=target, look=connection, flights=flights)


def nothing_but(**counts: int) -> dict[str, int]:
    return {"business": 0, "outbox": 0, "staging": 0, "ledger": 0} | counts


def somebody_waits_for_a_lock(look: psycopg.Connection) -> bool:
    row = look.execute("""
        SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
        WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()""").fetchone()
    return row is not None and row[0] > 0


@pytest.mark.full
def test_flights_and_their_records_say_what_the_file_says_in_the_order_of_time(
    job: Job, batches: dict[int, FlightMonth], slice_file: Path
) -> None:
    report = job.load(batches[1])
    assert (report.batch, report.rows, report.status) == ("flights-2013-01", 1_000, "promoted")
    assert job.counts() == nothing_but(business=1_000, outbox=1_000, ledger=1)

    with slice_file.open() as lines:
        in_file = [row for row in csv.reader(lines) if row[1] == "1"]
    names = [name.replace("tailnum", "tail_number") for name in HEADER]
    in_outbox = []
    statement = "SELECT kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_topic FROM {outbox}"
    for key, value, header_keys, header_values, topic in job.run_sql(statement):
        flight = json.loads(str(value))
        assert list(flight) == ["flight_id", *names]
        assert header_keys == ["event-type", "batch", "event-id"]
        assert header_values == ["flight-recorded", "flights-2013-01", str(flight["flight_id"])]
        assert topic == "flights"
        assert key == (flight["tail_number"] or f"{flight['carrier']}{flight['flight']}")
        assert flight["time_hour"].endswith("+00:00")
        flight["time_hour"] = flight["time_hour"].replace("+00:00", "Z")
        in_outbox.append(["NA" if flight[name] is None else str(flight[name]) for name in names])
    assert sorted(in_outbox) == sorted(in_file)
    assert any(row[names.index("tail_number")] == "NA" for row in in_file), "the slice must hold the special case"

    typed = (
        "SELECT count(*) FROM {business} f JOIN {outbox} ON kafka_header_values[3] = flight_id::text AND time_hour = "
    )
    same = job.run_sql(typed + "(kafka_value::json->>'time_hour')::timestamptz AND f.batch = kafka_header_values[2]")
    assert same == [(1_000,)]

    rows = job.run_sql("""
        SELECT kafka_key, flight_id, time_hour, sched_dep_time, carrier, flight, origin
        FROM {outbox} o JOIN {business} ON flight_id::text = kafka_header_values[3] ORDER BY o.id""")
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)  # type: ignore[type-var]
    assert [row[2:] for row in rows] == sorted(row[2:] for row in rows)
    assert len({row[0] for row in rows}) < len(rows), "some key must come twice for this to mean anything"


def test_other_data_under_the_same_id_is_refused(job: Job, batches: dict[int, FlightMonth]) -> None:
    first = job.load(batches[1])
    again = job.load(batches[1])
    assert (again.status, again.at) == ("already-promoted", first.at)
    other = replace(batches[1], content=Content(rows=1_000, content_hash="1"))
    with pytest.raises(BatchConflict, match="flights-2013-01 was promoted before, with other data"):
        job.load(other)
    job.stage(batches[1], "late")
    with pytest.raises(BatchConflict):
        job.promote(other, "late")
    assert job.counts() == nothing_but(business=1_000, outbox=1_000, ledger=1, staging=1_000)


def test_the_hash_tells_contents_apart_and_not_their_order(
    spark: SparkSession, slice_file: Path, tmp_path: Path
) -> None:
    header, *lines = slice_file.read_text().splitlines(keepends=True)
    lines = [line for line in lines if line.startswith("2013,1,")]

    def fingerprint(name: str, content: list[str]) -> str:
        file = tmp_path / name
        file.write_text(header + "".join(content))
        return batches_of(read_flights(spark, file), months=[1], file=file, source=file)[0].content.content_hash

    original = fingerprint("original.csv", lines)
    assert fingerprint("reversed.csv", lines[::-1]) == original
    fields = lines[0].split(",")
    dep_delay, arr_delay = HEADER.index("dep_delay"), HEADER.index("arr_delay")
    fields[dep_delay], fields[arr_delay] = "NA", "7"
    one = fingerprint("one.csv", [",".join(fields), *lines[1:]])
    fields[dep_delay], fields[arr_delay] = "7", "NA"
    other = fingerprint("other.csv", [",".join(fields), *lines[1:]])
    assert len({original, one, other}) == 3


def test_of_a_repeated_task_one_attempt_is_promoted(job: Job, batches: dict[int, FlightMonth]) -> None:
    job.stage(batches[1])
    columns = ", ".join(["batch", "run", "partition", "row", "row_hash", *HEADER]).replace("tailnum", "tail_number")
    # As after a lost acknowledgement: the partition's rows once more, by another transaction.
    job.run_sql(f"INSERT INTO {{staging}} ({columns}) SELECT {columns} FROM {{staging}}")  # noqa: S608
    assert job.counts()["staging"] == 2_000
    assert job.promote(batches[1])
    assert job.counts() == nothing_but(business=1_000, outbox=1_000, ledger=1)


@pytest.mark.parametrize(
    "spoil",
    [
        "DELETE FROM {staging} WHERE row = 0",
        "UPDATE {staging} SET row_hash = row_hash + 1 WHERE row = 0",
        # A row that vanishes on its way into the outbox.
        None,
    ],
)
def test_what_differs_from_what_spark_computed_is_not_promoted(
    spoil: str | None, job: Job, batches: dict[int, FlightMonth]
) -> None:
    job.stage(batches[1])
    if spoil is None:
        swallow(job.look, "outbox", "new.kafka_header_values[3] = '500'")
    else:
        job.run_sql(spoil)
    staged = job.counts()["staging"]
    with pytest.raises(PromotionRefused, match="Spark computed 1000 rows"):
        job.promote(batches[1])
    assert job.counts() == nothing_but(staging=staged)


@pytest.mark.parametrize(
    ("table", "check"), [("outbox", "kafka_header_values[3] <> '900'"), ("ledger", "batch <> 'flights-2013-01'")]
)
def test_a_failure_inside_the_promotion_leaves_nothing_and_can_be_repeated(
    table: str, check: str, job: Job, batches: dict[int, FlightMonth]
) -> None:
    job.run_sql(f"ALTER TABLE {{{table}}} ADD CONSTRAINT impossible CHECK ({check})")
    with pytest.raises(DatabaseError, match="impossible"):
        job.load(batches[1])
    assert job.counts() == nothing_but(staging=1_000)
    job.run_sql(f"ALTER TABLE {{{table}}} DROP CONSTRAINT impossible")
    assert job.load(batches[1]).status == "promoted"
    assert job.counts() == nothing_but(business=1_000, outbox=1_000, ledger=1)


def test_two_drivers_at_once_promote_a_batch_once(job: Job, batches: dict[int, FlightMonth]) -> None:
    def somebody_waits_for_the_batch() -> bool:
        return bool(
            job.run_sql("""
            SELECT 1 FROM pg_stat_activity
            WHERE datname = current_database() AND query LIKE '%%pg_try_advisory_lock%%' AND pid <> pg_backend_pid()""")
        )

    with connect(job.dsn) as holder, ThreadPoolExecutor(2) as pool, holder.transaction():
        holder.execute(queries.LOCK_OUTBOX, {"outbox": "outbox"})
        first = pool.submit(job.load, batches[1])
        eventually(lambda: somebody_waits_for_a_lock(job.look), seconds=DEADLINE_SECONDS)
        second = pool.submit(job.load, batches[1])
        eventually(somebody_waits_for_the_batch, seconds=DEADLINE_SECONDS)
        assert job.counts() == nothing_but(staging=1_000), "the second may not touch what the first has staged"
        holder.execute("ROLLBACK")
        assert (first.result().status, second.result().status) == ("promoted", "already-promoted")
    assert job.counts() == nothing_but(business=1_000, outbox=1_000, ledger=1)


def test_promotions_of_two_runs_that_both_staged_are_one(job: Job, batches: dict[int, FlightMonth]) -> None:
    job.stage(batches[1], "one")
    job.stage(batches[1], "two")
    with connect(job.dsn) as holder, ThreadPoolExecutor(2) as pool, holder.transaction():
        holder.execute(queries.LOCK_OUTBOX, {"outbox": "outbox"})
        promotions = [pool.submit(job.promote, batches[1], run) for run in ("one", "two")]
        eventually(lambda: somebody_waits_for_a_lock(job.look), seconds=DEADLINE_SECONDS)
        assert job.counts() == nothing_but(staging=2_000), "promotion must wait for the one before it"
        holder.execute("ROLLBACK")
        assert sorted(promotion.result() for promotion in promotions) == [False, True]
    assert job.counts() == nothing_but(business=1_000, outbox=1_000, ledger=1)


def test_the_command_line_tells_each_batch_and_the_sum(
    job: Job, slice_file: Path, jdbc_jar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dsn", job.dsn, "--source", str(slice_file), "--jdbc-jar", str(jdbc_jar), "--months", "1,3,10"]
    began = int(time.time())
    assert main([*arguments, "--json"]) == 0
    *reports, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(report["batch"], report["rows"], report["status"]) for report in reports] == [
        ("flights-2013-01", 1_000, "promoted"),
        ("flights-2013-03", 0, "empty"),
        ("flights-2013-10", 100, "promoted"),
    ]
    assert set(reports[0]) >= {"batch", "rows", "status", "staging_seconds", "promote_seconds", "at"}
    assert began <= reports[0]["at"] <= time.time()
    assert reports[1]["at"] is None
    assert last["summary"]["promoted_rows"] == 1_100

    assert main(arguments) == 0
    assert "already-promoted  skipped: nothing was written" in capsys.readouterr().out
    job.run_sql("UPDATE {ledger} SET rows = 999 WHERE batch = 'flights-2013-01'")
    assert main(arguments) == 8
    assert "with other data" in capsys.readouterr().err
    assert job.counts() == nothing_but(business=1_100, outbox=1_100, ledger=2)


@pytest.mark.parametrize(
    ("column", "content"),
    [("dep_delay", "surprise"), ("time_hour", "yesterday"), ("carrier", "NA"), ("month", "13"), ("origin", "EWR,JFK")],
)
def test_a_malformed_line_is_shown(
    column: str, content: str, spark: SparkSession, slice_file: Path, tmp_path: Path
) -> None:
    header, first, second, *_ = slice_file.read_text().splitlines(keepends=True)
    fields = second.rstrip().split(",")
    fields[HEADER.index(column)] = content
    file = tmp_path / "flights.csv"
    file.write_text(header + first + ",".join(fields) + "\n")
    with pytest.raises(SourceError) as caught:
        batches_of(read_flights(spark, file), months=[1], file=file, source=file)
    assert str(file) in str(caught.value)
    assert content in str(caught.value)
    assert f",{fields[HEADER.index('flight')]}," in str(caught.value)


def test_a_file_without_flights_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text(",".join(HEADER) + "\n")
    with pytest.raises(SourceError, match="holds no flights"):
        batches_of(read_flights(spark, file), months=[1], file=file, source=file)


def test_names_that_need_quotes_work(job: Job, batches: dict[int, FlightMonth]) -> None:
    job.run_sql('CREATE SCHEMA "my \'schema"')
    job.run_sql(OUTBOX.format('"my \'schema"."drop table"'))
    tables = Tables.named(business="my 'schema.fl\"ights; --", outbox="my 'schema.drop table")
    plan = prepare_flights(job.look, tables, flight_records("flights"))
    hostile = replace(job, plan=plan, target=jdbc_target(job.look, tables))
    assert hostile.load(batches[10]).status == "promoted"
    assert hostile.counts() == nothing_but(business=100, outbox=100, ledger=1)
    assert job.counts() == nothing_but()


def test_an_outbox_table_that_is_missing_or_another_table_is_named(dsn: str) -> None:
    tables = Tables.named(business="flights", outbox="outbox")
    with connect(dsn) as connection:
        with pytest.raises(OutboxTableError, match=r"(?s)\"outbox\" does not exist.*harvest init"):
            prepare_flights(connection, tables, flight_records("flights"))
        connection.execute(OUTBOX.format("outbox"))
        connection.execute("ALTER TABLE outbox DROP COLUMN leader_id")
        with pytest.raises(OutboxTableError, match="lacks leader_id"):
            prepare_flights(connection, tables, flight_records("flights"))
        assert connection.execute("SELECT to_regclass('flights')").fetchone() == (None,)


def test_a_staging_write_that_fails_shows_the_reason_and_no_secret(job: Job, batches: dict[int, FlightMonth]) -> None:
    job.run_sql("ALTER TABLE {staging} ADD CONSTRAINT never CHECK (row < 0)")
    target = replace(job.target, properties=dict(job.target.properties) | {"ApplicationName": "canary"})
    with pytest.raises(DatabaseError, match="violates check constraint") as caught:
        replace(job, target=target).load(batches[10])
    assert "canary" not in str(caught.value) + repr(target)
    assert "2013-" not in str(caught.value).replace("flights-2013-10", "")
