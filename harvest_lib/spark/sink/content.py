"""The content of a frame as row count and hash, with which a repeated batch is compared to its first promotion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, CharType, DataType, StringType, VarcharType


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The number of rows, and a hash of all rows. The order of the rows does not change the hash."""

    rows: int
    content_hash: str

    def __str__(self) -> str:
        return f"{self.rows} rows, hash {self.content_hash}"


def column(name: str) -> Column:
    """Return the column with exactly this name. Without the quotes Spark would read a dot as a field of a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


def row_hash(names: Sequence[str]) -> Column:
    """Return a hash of a row's columns. The hash also covers which columns are null, because xxhash64 skips nulls."""
    return F.xxhash64(*map(column, names), *[column(name).isNull() for name in names])


def hash_sum(hashes: Column) -> Column:
    """Return the sum of row hashes as decimal(38,0), 0 without rows."""
    return F.coalesce(F.sum(hashes.cast("decimal(20,0)")).cast("decimal(38,0)"), F.lit(0).cast("decimal(38,0)"))


def nul_evidence(counts: Mapping[str, int]) -> str:
    """Return a description of the columns with NUL characters, which Postgres cannot store. `counts` maps a column to
    the number of its rows with NUL. The description is empty if all counts are 0."""
    return "; ".join(f"{count} rows have a NUL character in {name!r}" for name, count in counts.items() if count)


def nul_counts(frame: DataFrame) -> dict[str, int]:
    """Compute the frame once; return for each column of text, or of arrays of text, its number of rows with NUL."""
    texts = {each.name: each.dataType for each in frame.schema.fields if _is_text(each.dataType)}
    if not texts:
        return {}
    has = [
        F.exists(column(name), lambda each: each.contains("\0"))
        if isinstance(kind, ArrayType)
        else column(name).contains("\0")
        for name, kind in texts.items()
    ]
    row = frame.agg(*(F.count(F.when(each, 1)).alias(str(number)) for number, each in enumerate(has))).first()
    return dict(zip(texts, row or (), strict=True))


def _is_text(kind: DataType) -> bool:
    return isinstance(kind.elementType if isinstance(kind, ArrayType) else kind, StringType | CharType | VarcharType)


def content_of(frame: DataFrame) -> Content:
    """Compute the frame once, and return its content."""
    row = frame.agg(F.count(F.lit(1)).alias("rows"), hash_sum(row_hash(frame.columns)).alias("hash_sum")).first()
    assert row is not None  # noqa: S101 - an aggregate without groups returns a row
    return Content(rows=row["rows"], content_hash=str(row["hash_sum"]))
