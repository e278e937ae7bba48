"""What a frame holds, as count and hash: by that a batch is known again."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Rows and a hash of them all that does not depend on their order."""

    rows: int
    content_hash: str

    def __str__(self) -> str:
        return f"{self.rows} rows, hash {self.content_hash}"


def column(name: str) -> Column:
    """Name a column as it is spelled: Spark would take a dot for a way into a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


def row_hash(names: Sequence[str]) -> Column:
    """Hash the columns of a row. Nulls are told apart by place: xxhash64 itself skips them."""
    return F.xxhash64(*map(column, names), *[column(name).isNull() for name in names])


def hash_sum(hashes: Column) -> Column:
    """Add up the hashes of rows."""
    return F.coalesce(F.sum(hashes.cast("decimal(20,0)")).cast("decimal(38,0)"), F.lit(0).cast("decimal(38,0)"))


def content_of(frame: DataFrame) -> Content:
    """Compute the frame once, for its content alone."""
    row = frame.agg(F.count(F.lit(1)).alias("rows"), hash_sum(row_hash(frame.columns)).alias("hash_sum")).first()
    assert row is not None  # noqa: S101 - an aggregate without groups is one row
    return Content(rows=row["rows"], content_hash=str(row["hash_sum"]))
