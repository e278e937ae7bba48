"""Promises of the flights job without Spark and without Postgres."""

import gzip
import zipfile
from decimal import Decimal
from pathlib import Path

import pytest

from harvest_lib.errors import ConfigError
from harvest_lib.spark.errors import SourceError
from harvest_lib.spark.flights.by_month import main, parse_months
from harvest_lib.spark.flights.source import HEADER, published_source, unpack
from harvest_lib.spark.session import jdbc_jars
from harvest_lib.spark.sink.database import Tables, connect
from harvest_lib.spark.sink.promotion import choose_attempts
from harvest_lib.spark.sink.report import BatchReport
from harvest_lib.spark.sink.statement import Attempt
from harvest_lib.spark.summaries import summarize

pytestmark = pytest.mark.quick


def attempt(partition: int, number: str, rows: int = 1) -> Attempt:
    return Attempt(partition=partition, attempt=number, rows=rows, hash_sum=Decimal(rows))


@pytest.mark.parametrize(
    ("text", "months"),
    [("1-12", list(range(1, 13))), ("3", [3]), ("1,2,6-8", [1, 2, 6, 7, 8]), ("2,2", [2])],
)
def test_months_are_read(text: str, months: list[int]) -> None:
    assert parse_months(text) == months


@pytest.mark.parametrize("text", ["", "0", "13", "5-3", "1,", "a", "-1", "1-"])
def test_what_names_no_months_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="months"):
        parse_months(text)


def test_one_attempt_is_chosen_per_partition_by_number_and_not_by_text() -> None:
    chosen = choose_attempts([attempt(1, "7"), attempt(0, "10"), attempt(0, "9"), attempt(1, "70")])
    assert [(a.partition, a.attempt) for a in chosen] == [(0, "9"), (1, "7")]


def test_names_are_taken_as_spelled_and_quoted() -> None:
    tables = Tables.named(business='fl"ights', outbox="Sales.outbox")
    assert tables.business.as_string() == '"fl""ights"'
    assert tables.outbox.as_string() == '"Sales"."outbox"'
    assert tables.staging.as_string() == '"fl""ights_staging"'


@pytest.mark.parametrize("dsn", ["postgresql://me:canary%zz@host/db", "canary", "postgresql://me:a@canary@host/db"])
def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    with pytest.raises(ConfigError, match="connection string of Postgres cannot be read") as caught:
        connect(dsn)
    assert "canary" not in str(caught.value)


def test_a_jar_that_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVEST_SPARK_JARS", str(tmp_path / "missing.jar"))
    with pytest.raises(ConfigError, match=r"missing\.jar does not exist"):
        jdbc_jars(None)
    monkeypatch.delenv("HARVEST_SPARK_JARS")
    with pytest.raises(ConfigError, match="no Postgres JDBC driver"):
        jdbc_jars(None)


def test_the_published_file_unpacks_to_a_csv(tmp_path: Path) -> None:
    with unpack(published_source(), folder=tmp_path).open() as lines:
        assert next(lines).strip().split(",") == HEADER


def _missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def _other_header(path: Path) -> None:
    path.write_text("year,month,surprise\n2013,1,1\n")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _not_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00year")


def _not_a_zip(path: Path) -> None:
    path.write_bytes(b"PK nothing of the kind")


def _two_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "a")
        archive.writestr("b.csv", "b")


def _cut_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(",".join(HEADER).encode() * 100)[:40])


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("flights.csv", _missing, "cannot be read"),
        ("flights.csv", _other_header, "year,month,surprise"),
        ("flights.csv", _empty, "header"),
        ("flights.csv", _not_text, "cannot be read"),
        ("flights.csv.zip", _not_a_zip, "cannot be read"),
        ("flights.csv.zip", _two_members, "2 members"),
        ("flights.csv.gz", _cut_gzip, "cannot be read"),
    ],
)
def test_a_bad_source_file_is_named(name: str, spoil: object, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert callable(spoil)
    spoil(path)
    with pytest.raises(SourceError) as caught:
        unpack(path, folder=tmp_path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_missing_source_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jar = tmp_path / "driver.jar"
    jar.touch()
    source = tmp_path / "nowhere.csv"
    assert main(["--dsn", "", "--source", str(source), "--jdbc-jar", str(jar)]) == 3
    assert str(source) in capsys.readouterr().err


def test_a_summary_counts_only_what_was_promoted_into_its_rates() -> None:
    summary = summarize(
        [
            BatchReport(batch="a", rows=100, status="promoted", staging_seconds=2, promote_seconds=1, at=1.0),
            BatchReport(batch="b", rows=50, status="already-promoted", at=1.0),
            BatchReport(batch="c", rows=0, status="empty"),
        ],
        seconds=9,
    )
    assert (summary.rows, summary.promoted_rows) == (150, 100)
    assert (summary.promoted, summary.already_promoted, summary.empty) == (1, 1, 1)
    assert (summary.staging_rows_per_second, summary.promotion_rows_per_second) == (50, 100)
