"""Rows of a Parquet file, read a few at a time, as values that a message can hold.

Promises
- Times are read without any change, also in lists and structs: microseconds, the years 1 to 9999, and INT96, which
  Spark, Hive and Impala write. A time with nanoseconds, a time outside these years, and a time in the calendar of Spark
  before version 3 are refused.
- Batches are limited by bytes in memory, not by bytes in the file, where a dictionary stores a repeated value once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from harvest_lib.errors import AdaptorError, MessageRefused
from harvest_lib.pipeline.bounds import BATCH_BYTES

_BUFFER_BYTES = 1 << 18
_MOST_ROWS = 16
"""Rows per read, at most. A value in a dictionary may be of any size, and the file does not record how often a value is
used."""
_PLAIN = {bool, int, float, str, bytes, type(None)}
_SPARKS_OLD_CALENDAR = (b"org.apache.spark.legacyINT96", b"org.apache.spark.legacyDateTime")
_SAME_IN_BOTH_CALENDARS = 1900


def rows_of(pa: Any, path: Path, most_rows: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. Raises AdaptorError for an unreadable file, MessageRefused for a time that a message
    cannot hold."""
    with _readable(pa, path), _opened(pa, path, "us") as file:
        schema = pa.schema([field.with_type(_in_microseconds(pa, field.type)) for field in file.schema_arrow])
        old_calendar = any(key in (file.metadata.metadata or {}) for key in _SPARKS_OLD_CALENDAR)
        checked = _int96_columns(file)
        at_once = min(most_rows, _MOST_ROWS, _rows_at_once(file.metadata))
        for batch in _batches(pa, path, file, checked, at_once):
            try:
                table = pa.Table.from_batches([batch]).cast(schema)
            except pa.ArrowInvalid as error:
                raise _refused_time(path, str(error)) from error
            for row in _rows(path, table):
                if old_calendar and any(map(_is_ancient, row.values())):
                    raise _refused_time(path, "a time before 1900, in the calendar of Spark before version 3")
                yield {name: _value(each) for name, each in row.items()}


def encoded_columns(pa: Any, path: Path, metadata: Mapping[bytes, bytes]) -> set[str]:
    """Return the names of the columns whose metadata equals `metadata`. Raises AdaptorError for an unreadable file."""
    with _readable(pa, path), _opened(pa, path, "us") as file:
        return {field.name for field in file.schema_arrow if (field.metadata or {}) == metadata}


@contextmanager
def _readable(pa: Any, path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        raise AdaptorError(
            f"{path} is no Parquet file that can be read",
            evidence=f"{type(error).__name__}: {error}",
            next_step="restore it, or move it away: then what it holds is left out",
        ) from error


def _opened(pa: Any, path: Path, unit: str) -> Any:
    return pa.parquet.ParquetFile(path, coerce_int96_timestamp_unit=unit, buffer_size=_BUFFER_BYTES)


def _rows_at_once(metadata: Any) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    largest = max((each.total_byte_size // max(1, each.num_rows) for each in groups), default=1)
    return int(max(1, BATCH_BYTES // max(1, largest)))


def _int96_columns(file: Any) -> Sequence[str]:
    paths = [file.schema.column(number) for number in range(len(file.schema))]
    found = [each.path for each in paths if each.physical_type == "INT96"]
    return [name for name in file.schema_arrow.names if any(f"{each}.".startswith(f"{name}.") for each in found)]


def _batches(pa: Any, path: Path, file: Any, int96: Sequence[str], at_once: int) -> Iterator[Any]:
    """Yield the record batches of a file, with INT96 columns in microseconds. Raises MessageRefused for an INT96 time
    with nanoseconds."""
    if not int96:
        yield from file.iter_batches(at_once)
        return
    with _opened(pa, path, "ns") as in_nanoseconds:  # wraps around as the product in `_are_same` does
        exact = in_nanoseconds.iter_batches(at_once, columns=list(int96))
        for batch, other in zip(file.iter_batches(at_once), exact, strict=True):
            for name in other.schema.names:
                if not _are_same(pa, batch.column(name), other.column(name)):
                    raise _refused_time(path, f"nanoseconds, in the column {name}")
            yield batch


def _are_same(pa: Any, micro: Any, nano: Any) -> bool:
    """Return True if all times in `micro` (microseconds) equal the times in `nano` (nanoseconds), modulo 64 bits."""
    types, kind = pa.types, micro.type
    if types.is_timestamp(kind):
        product = pa.compute.multiply(micro.cast(pa.int64()), 1000)
        return pa.compute.all(pa.compute.equal(product, nano.cast(pa.int64()))).as_py() is not False
    if types.is_map(kind):
        return _are_same(pa, micro.keys, nano.keys) and _are_same(pa, micro.items, nano.items)
    if types.is_struct(kind):
        pairs = zip(micro.flatten(), nano.flatten(), strict=True)
        return all(_are_same(pa, one, other) for one, other in pairs)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _are_same(pa, micro.flatten(), nano.flatten())
    return True


def _in_microseconds(pa: Any, kind: Any) -> Any:
    """Return the same type, with microseconds in place of nanoseconds, and with UTC in place of any other time zone."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us" if kind.unit == "ns" else kind.unit, tz="UTC" if kind.tz is not None else None)
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_duration(kind):
        return pa.duration("us" if kind.unit == "ns" else kind.unit)
    if types.is_struct(kind):
        return pa.struct([each.with_type(_in_microseconds(pa, each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_in_microseconds(pa, kind.key_type), _in_microseconds(pa, kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(pa, kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_microseconds(pa, kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(pa, kind.value_type)), kind.list_size)
    return kind


def _rows(path: Path, table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table. Each row is converted only when it is requested, because a large dictionary value may
    be in every row."""
    names = table.column_names
    for row in zip(*table.columns, strict=True):
        try:
            yield {name: value.as_py() for name, value in zip(names, row, strict=True)}
        except (ValueError, OverflowError) as error:  # the value is out of range for Python's type
            raise _refused_time(path, f"{type(error).__name__}: {error}") from error


def _value(value: Any) -> Any:
    """Return a value of a Parquet file as a value that a message can hold."""
    if type(value) in _PLAIN or isinstance(value, Decimal):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo is not None else value.isoformat(" ")
    if isinstance(value, Mapping):
        return {name: _value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):  # a tuple is an entry of a map
        return [_value(each) for each in value]
    return str(value)


def _is_ancient(value: Any) -> bool:
    if isinstance(value, date):  # includes datetime
        return value.year < _SAME_IN_BOTH_CALENDARS
    if isinstance(value, Mapping):
        return any(map(_is_ancient, value.values()))
    return isinstance(value, list | tuple) and any(map(_is_ancient, value))


def _refused_time(path: Path, evidence: str) -> MessageRefused:
    return MessageRefused(
        f"{path} has a time that a message cannot hold",
        evidence=evidence,
        next_step="write the file anew with microseconds and years from 1 to 9999 (Spark: "
        "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS), or move it away: then what it holds is left out",
    )
