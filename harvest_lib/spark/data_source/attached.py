"""The attached segments of an outbox, and the files of their tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.segments import Segment, Segments
from harvest_lib.postgres.translation import translated
from harvest_lib.spark.data_source.read_options import ReadOptions
from harvest_lib.spark.data_source.windows import HIGHEST_ID, LOWEST_ID, dropped

# A statement that empties or rewrites a table gives it another file.
_FILES = """
SELECT coalesce(pg_relation_filenode(to_regclass(name)), 0)::bigint
FROM unnest(%s::text[]) WITH ORDINALITY AS segment (name, number) ORDER BY number
"""

_FILLED = "SELECT name FROM unnest(%s::text[]) AS segment (name) WHERE pg_relation_size(to_regclass(name)) > 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """The attached segments of an outbox, in ascending order of ids."""

    segments: Sequence[Segment]

    @property
    def floor(self) -> int:
        """The lowest id that has a segment."""
        return lowest_of(self.segments[0]) if self.segments else HIGHEST_ID

    @property
    def closed(self) -> int:
        """The id below which nothing is inserted any more."""
        end = self.floor
        for each in self.segments:
            if each.closed_at is None or each.upper is None or lowest_of(each) != end:
                break
            end = each.upper
        return end

    def require(self, first: int, below: int | None = None) -> None:
        """Raise PositionLost unless every id from `first` on has a segment. The ids end before `below`, or, if `below`
        is None, where the newest segment begins."""
        covered = first
        for each in self.segments:
            if lowest_of(each) > covered:
                break
            covered = max(covered, HIGHEST_ID if each.upper is None else each.upper)
        wanted = below if below is not None else max((lowest_of(each) for each in self.segments), default=HIGHEST_ID)
        if covered < wanted:
            raise dropped(f"there is no segment for the id {covered} any more, ids from {first} on were to be read")


def table_of(options: ReadOptions) -> OutboxTable:
    """Return the outbox that options name."""
    return OutboxTable.parse(options.outbox)


def attached(connection: psycopg.Connection[Any], options: ReadOptions) -> Attached:
    """Return the attached segments, except those that are being detached."""
    found = Segments(table_of(options)).read(connection)
    return Attached(segments=[each for each in found if not each.detaching])


def files(connection: psycopg.Connection[Any], segments: Sequence[Segment]) -> dict[str, int]:
    """Return the file number of each segment's table, keyed by the table's name. A missing table has the number 0."""
    names = [str(each.table) for each in segments]
    with translated():
        return dict(zip(names, (row[0] for row in connection.execute(_FILES, (names,)).fetchall()), strict=True))


def filled(connection: psycopg.Connection[Any], segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments whose tables have pages. A snapshot that was taken before sees no row in the others."""
    names = [str(each.table) for each in segments]
    with translated():
        found = {row[0] for row in connection.execute(_FILLED, (names,)).fetchall()}
    return [each for each, name in zip(segments, names, strict=True) if name in found]


def lowest_of(segment: Segment) -> int:
    """Return the lowest id that a segment can have."""
    return LOWEST_ID if segment.lower is None else segment.lower
