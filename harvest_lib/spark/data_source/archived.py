"""The archive of an outbox for Spark: the records of dropped segments, read from the files of the archive.

The archive and the outbox together have all records since the archive began, and a read returns each record once. An
attached segment is read from Postgres, every other segment from the archive. Ids that are in neither of the two are an
error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from harvest_lib.archive import ArchivedFile, ArchiveFiles
from harvest_lib.archive.records import load_pyarrow
from harvest_lib.errors import ArchiveError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.identity import identity_of
from harvest_lib.outbox.segments.archived import ArchivedSegments
from harvest_lib.source.pg_snapshot import Snapshot
from harvest_lib.spark.data_source.pushed import Condition, ids_of, selected
from harvest_lib.spark.data_source.read_options import arrow_schema

_BATCH_ROWS = 5_000
_INFINITE = [2**63 - 1, -(2**63)]


@dataclass(frozen=True, slots=True)
class ArchivedPartition(InputPartition):
    """A file of the archive, and the snapshot and the conditions that select the records to read from it."""

    url: str
    file: ArchivedFile
    snapshot: str
    conditions: tuple[Condition, ...] = ()


def plan_archived(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    url: str,
    floor: int,
    snapshot: Snapshot,
    *,
    conditions: tuple[Condition, ...] = (),
) -> list[ArchivedPartition]:
    """Return the files of the archived segments below `floor`, the lowest id that still has a segment in the outbox.
    Segments whose ids do not meet the conditions are left out.

    Raises ArchiveError if the archive belongs to another outbox, or lacks a dropped segment.
    """
    files, placed = ArchiveFiles(url), outbox.placed(connection)
    files.require(str(identity_of(connection, placed.identifier)), str(placed))
    found = files.manifests()
    noted = ArchivedSegments(placed)
    names = noted.names(connection, files.url) if placed.archived.exists(connection) else []
    if missing := sorted(set(names) - {each.segment for each in found}):
        raise _lacks(files.url, f"the outbox notes {', '.join(missing)} as archived, and there is no manifest of it")
    before = [each for each in found if each.upper <= floor]
    for each, following in zip(before, [*(each.lower for each in before), floor][1:], strict=True):
        if each.upper != following:
            raise _lacks(files.url, f"{each.segment} ends below {each.upper}, the next segment begins at {following}")
    lowest, highest = ids_of(conditions)
    needed = [each for each in before if each.upper > lowest and (each.lower is None or each.lower <= highest)]
    return [ArchivedPartition(url, file, str(snapshot), conditions) for each in needed for file in each.files]


def read_archived(part: ArchivedPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that the snapshot saw, in the order of ids. Raises ArchiveError if the file was changed
    after it was written."""
    files, arrow = ArchiveFiles(part.url), arrow_schema(schema)
    snapshot = Snapshot.parse(part.snapshot)
    unseen = pa.array(snapshot.in_progress, pa.int64())
    needed = {*arrow.names, *(each.column for each in part.conditions), "transaction_id"}
    files.check_bytes(part.file)
    with files.opened(part.file.path) as opened:
        for written in load_pyarrow().parquet.ParquetFile(opened).iter_batches(_BATCH_ROWS, columns=sorted(needed)):
            ended = pc.less(written["transaction_id"], snapshot.xmax)
            batch = written.filter(pc.and_(ended, pc.invert(pc.is_in(written["transaction_id"], value_set=unseen))))
            batch = selected(_with_finite_times(batch), part.conditions)
            yield pa.RecordBatch.from_arrays([batch[each.name].cast(each.type) for each in arrow], schema=arrow)


def _with_finite_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with null as the time of records without a finite time, because Spark has no infinite time."""
    if "create_time" not in batch.schema.names:
        return batch
    at = batch["create_time"].cast(pa.int64())
    infinite = pc.is_in(at, value_set=pa.array(_INFINITE))
    finite = pc.if_else(infinite, pa.scalar(None, pa.int64()), at).cast(pa.timestamp("us", "UTC"))
    return batch.set_column(batch.schema.get_field_index("create_time"), "create_time", finite)


def _lacks(url: str, evidence: str) -> ArchiveError:
    return ArchiveError(
        f"the archive {url} lacks segments that are gone from the outbox",
        evidence=evidence,
        next_step="restore the archive from a copy; the rows still in the outbox are read without the option archive",
    )
