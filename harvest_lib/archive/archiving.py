"""Archiving of closed segments. A segment is written into an archive and read back before retention may drop it.

A closed segment changes only if a parked record is put back. Retention detects this, and the segment is archived again.
After a kill at any moment, or a full disk, the next run starts with the first segment that is not recorded as archived,
and writes the files of that segment again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.archive.files import ArchivedFile, ArchiveFiles, Manifest
from harvest_lib.archive.records import Rows, SegmentRecords, load_pyarrow, names_and_types
from harvest_lib.errors import ArchiveError, DatabaseError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.identity import identity_of
from harvest_lib.outbox.row_security import check_all_rows
from harvest_lib.outbox.segments import Segment, Segments
from harvest_lib.outbox.segments.archived import ArchivedSegments
from harvest_lib.postgres.database import lift_timeouts
from harvest_lib.postgres.translation import translated

_ALONE = "SELECT pg_try_advisory_lock(hashtextextended('harvest archives ' || %s, 0))"
_NOT_ALONE = "SELECT pg_advisory_unlock(hashtextextended('harvest archives ' || %s, 0))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """Result for an archived segment: its name, and its number of records, files and bytes."""

    segment: str
    records: int
    files: int
    bytes: int


def unarchived_segments(connection: psycopg.Connection[Any], outbox: OutboxTable, url: str) -> Sequence[Segment]:
    """Return the closed segments whose current state is not in the archive, ordered by id.

    Needs the owner's rights and a connection in autocommit. Raises ArchiveError and DatabaseError.
    """
    placed = outbox.placed(connection)
    files, noted = ArchiveFiles(url), ArchivedSegments(placed)
    exists = placed.archived.exists(connection)
    return [
        each
        for each in closed_segments(connection, placed)
        if not exists or noted.missing(connection, each, uncounted=True) or files.manifest(each.name) is None
    ]


def closed_segments(connection: psycopg.Connection[Any], outbox: OutboxTable) -> Sequence[Segment]:
    """Return the segments into which no transaction can write any more, ordered by id."""
    found = Segments(outbox.placed(connection)).close_passed(connection)
    return [each for each in found if each.closed_at is not None and not each.detaching]


def archive_segments(
    connection: psycopg.Connection[Any], outbox: OutboxTable, url: str, segments: Sequence[Segment] | None = None
) -> Iterator[Archived]:
    """Archive closed segments, by default the `unarchived_segments`. Yield a result for each segment after the segment
    was archived.

    From the first call on, retention drops only archived segments. Needs the owner's rights and a connection in
    autocommit. Raises ArchiveError and DatabaseError; segments that were yielded before an error remain archived.
    """
    placed = outbox.placed(connection)
    check_all_rows(connection, [placed.identifier], segments=True)
    files, noted = ArchiveFiles(url), ArchivedSegments(placed)
    with _alone(connection, placed):
        noted.create(connection)
        files.claim(str(identity_of(connection, placed.identifier)), str(placed))
        for segment in unarchived_segments(connection, placed, url) if segments is None else segments:
            if noted.is_another(connection, segment, files.url):
                raise ArchiveError(
                    f"the archive {files.url} has another segment {segment.name}, of records that the outbox lacks",
                    evidence="each present record is of a later transaction: ids began again (TRUNCATE … "
                    "RESTART IDENTITY), and these files would replace the archived files",
                    next_step="archive from now on under another URL, and keep this archive unchanged",
                )
            if segment.name in noted.names(connection, files.url):
                noted.forget(connection, segment)
            manifest = _written(connection, files, segment)
            files.publish(manifest)
            noted.put(
                connection,
                segment.name,
                url=files.url,
                records=manifest.records,
                last_transaction=manifest.last_transaction,
            )
            size = sum(each.bytes for each in manifest.files)
            yield Archived(segment=segment.name, records=manifest.records, files=len(manifest.files), bytes=size)


def _written(connection: psycopg.Connection[Any], files: ArchiveFiles, segment: Segment) -> Manifest:
    """Write the files of a segment, then compare them with the rows in Postgres, in the same snapshot. Return the
    segment's manifest."""
    assert segment.upper is not None  # noqa: S101 - a closed segment has an upper bound
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # The table is locked before the snapshot is taken. If a statement rewrote the table after the snapshot (ALTER …
        # TYPE, TRUNCATE), the snapshot would see no rows.
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(segment.table.identifier))
        lift_timeouts(connection)
        records = SegmentRecords(connection, segment)
        writing = _Writing(files, records)
        done = [writing.write(*group) for group in records.groups()]
        for file, (_, _, rows) in zip(done, records.groups(), strict=True):
            writing.compare(file, rows)
        count, last_transaction = records.totals()
    if count != sum(each.records for each in done):
        raise ArchiveError(
            f"the segment {segment.name} was not written whole",
            evidence=f"{count} records in Postgres, {sum(each.records for each in done)} in {len(done)} files",
            next_step="run this again",
        )
    return Manifest(
        segment=segment.name,
        lower=segment.lower,
        upper=segment.upper,
        records=count,
        last_transaction=last_transaction,
        columns=names_and_types(records.schema),
        files=done,
    )


@dataclass(frozen=True, slots=True)
class _Writing:
    """Writes the files of a segment, and compares them with Postgres."""

    files: ArchiveFiles
    records: SegmentRecords

    def write(self, topic: str, day: str, rows: Rows) -> ArchivedFile:
        parquet = load_pyarrow().parquet
        path, schema = self.files.path(self.records.segment.name, day=day, topic=topic), self.records.schema
        ids: list[int] = []
        count = 0
        with self.files.written(path) as sink, parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
            for table in self.records.tables(rows):
                writer.write_table(table, row_group_size=table.num_rows)
                ids = [*ids[:1], table["id"][0].as_py(), table["id"][-1].as_py()]
                count += table.num_rows
        return ArchivedFile(
            path=path,
            topic=topic,
            day=day,
            records=count,
            first_id=ids[0],
            last_id=ids[-1],
            bytes=sink.bytes,
            sha256=sink.sha256,
        )

    def compare(self, file: ArchivedFile, rows: Rows) -> None:
        """Raise ArchiveError if the bytes of a file differ from the bytes written, or its rows differ from `rows`."""
        self.files.check_bytes(file)
        with self.files.opened(file.path) as opened:
            read = load_pyarrow().parquet.ParquetFile(opened)
            for number, expected in enumerate(self.records.tables(rows)):
                if number >= read.num_row_groups or not read.read_row_group(number).equals(expected):
                    raise ArchiveError(
                        f"{file.path} in the archive {self.files.url} differs from Postgres",
                        evidence=f"row group {number} differs",
                        next_step="run this again; if it differs again, find the other process that writes there",
                    )


@contextmanager
def _alone(connection: psycopg.Connection[Any], outbox: OutboxTable) -> Iterator[None]:
    with translated():
        if connection.execute(_ALONE, (str(outbox),)).fetchone() != (True,):
            raise DatabaseError(
                f"another command archives {outbox}",
                evidence="it has the advisory lock (pg_locks, locktype advisory)",
                next_step="let it finish",
            )
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(_NOT_ALONE, (str(outbox),))


def verify_archive(url: str) -> Iterator[Archived]:
    """Read every file that a manifest names. Yield a result for each segment whose files match its manifest.

    Raises ArchiveError for the first missing or altered file, and for a gap in the ids of the segments.
    """
    files = ArchiveFiles(url)
    before: Manifest | None = None
    for manifest in files.manifests():
        if before is not None and manifest.lower != before.upper:
            raise ArchiveError(
                f"the archive {files.url} lacks ids",
                evidence=f"{before.segment} ends below {before.upper}, {manifest.segment} begins at {manifest.lower}",
                next_step="restore the manifests in between from a copy, or archive the segments that still exist",
            )
        for file in manifest.files:
            files.check_bytes(file)
            with files.opened(file.path) as opened:
                found = load_pyarrow().parquet.ParquetFile(opened).metadata.num_rows
            if found != file.records:
                raise ArchiveError(
                    f"{file.path} in the archive {files.url} is damaged",
                    evidence=f"it has {found} records, the manifest names {file.records}",
                    next_step="restore it from a copy of the archive",
                )
        size = sum(each.bytes for each in manifest.files)
        yield Archived(segment=manifest.segment, records=manifest.records, files=len(manifest.files), bytes=size)
        before = manifest
