"""`harvest segments list | ensure | rotate | drop | archive | verify`: the partitions of a native outbox."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harvest_lib.cli.confirmation import DryRun, Yes, ask, require_answer
from harvest_lib.cli.options import DEFAULT_AHEAD, ConfigFile, Json, open_outbox
from harvest_lib.cli.parsing import group
from harvest_lib.cli.terminal import json_text, printable
from harvest_lib.cli.usage import Misuse, require_duration
from harvest_lib.errors import NothingChecked

if TYPE_CHECKING:
    import psycopg

    from harvest_lib.archive import Archived
    from harvest_lib.config import HarvestConfig
    from harvest_lib.outbox import OutboxTable
    from harvest_lib.outbox.segments import Detached, Segment, Segments

_NO_STORES = {"ftp", "http", "https", "data", "git", "github"}
"""Schemes of fsspec that only read, or that send passwords and records in clear text."""
app = group("segments", "The segments of a native outbox: list, create in advance, archive and drop them.")


@app.command("list")
def list_(config: ConfigFile = None, as_json: Json = False) -> None:
    """List the segments: ids, size and state. Also records which segments the sequence has passed.

    Example:  harvest segments list -f harvest.yaml
    """
    from harvest_lib.outbox.segments import Segments, detached_segments

    with _open_native(config) as (_, outbox, connection):
        segments = Segments(outbox)
        rows = [_segment_row(segments, connection, each) for each in segments.close_passed(connection)]
        next_id = segments.next_id(connection)
        detached = detached_segments(connection, outbox)
    rows += map(_detached_row, detached)
    if as_json:
        typer.echo(json_text(rows))
        return
    _show_rows(rows)
    typer.echo(f"next id: {next_id}")
    for each in detached:
        typer.echo(printable(str(each)))


@app.command()
def ensure(
    config: ConfigFile = None,
    count: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of segments with an end, the current segment included.")
    ] = (DEFAULT_AHEAD),
    segment_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Ids in a new segment. Default: the size of the last segment."),
    ] = None,
) -> None:
    """Create segments in advance. Run it about every hour as the owner of the table. Writers wait milliseconds.

    Example:  harvest segments ensure -f harvest.yaml
    """
    from harvest_lib.outbox.segments import ensure_segments

    with _open_native(config) as (_, outbox, connection):
        done = ensure_segments(connection, outbox, ahead=count, size=segment_size)
    tail = ", one of them from a tail that had records" if done.cut_tail else ""
    typer.echo(f"{done.made} segments created{tail}" if done.made else "there are enough segments")


@app.command()
def rotate(
    config: ConfigFile = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Only if the first records of the segment are older, e.g. 24h."),
    ] = None,
    due: Annotated[
        bool, typer.Option("--due", help="Only if they are older than the configuration's maxSegmentAge.")
    ] = False,
) -> None:
    """Direct the next record into the next segment. Run it as the owner of the table.

    Writers wait milliseconds. While a transaction that has written stays open
    they wait for 0.2 s at a time, for a minute at most.

    The ids that are left in the segment are skipped. Retention works by whole
    segments, so a table with few records needs this to be emptied in time. The
    harvester does it after `maxSegmentAge` if it owns the table.

    Examples:

      harvest segments rotate -f harvest.yaml

      harvest segments rotate -f harvest.yaml --due
    """
    from harvest_lib.outbox.segments import rotate_segment

    if due and older_than is not None:
        raise Misuse(
            "--due and --older-than exclude each other",
            next_step="give one of them; --due takes the age from the configuration's maxSegmentAge",
        )
    age_seconds = None if older_than is None else require_duration(older_than, "--older-than")
    with _open_native(config) as (configured, outbox, connection):
        if due:
            age_seconds = configured.max_segment_age_seconds
            if not age_seconds:
                typer.echo("nothing to rotate: maxSegmentAge is 0, a segment ends with its ids only")
                return
        done = rotate_segment(connection, outbox, older_than_seconds=age_seconds)
    if done is None:
        older = "" if age_seconds is None else f" older than {older_than or f'{age_seconds:g} s'}"
        typer.echo(f"nothing to rotate: the segment has no record{older}")
    else:
        typer.echo(f"rotated: {printable(done.segment)}; the next id is {done.next_id}")


@app.command()
def drop(
    config: ConfigFile = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long to keep segments after they were closed, e.g. 24h. Default: the configuration's "
            "keepSegments.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Drop the segments that every subscription has passed. Run it as the owner of the table. Writers do not wait.

    Examples:

      harvest segments drop -f harvest.yaml --dry-run

      harvest segments drop -f harvest.yaml --keep 72h --yes
    """
    from harvest_lib.outbox.segments import drop_passed

    given = None if keep is None else require_duration(keep, "--keep")
    require_answer(yes=yes or dry_run)
    with _open_native(config) as (configured, outbox, connection):
        keep_seconds = configured.keep_segments_seconds if given is None else given
        if not (yes or dry_run):
            found = drop_passed(connection, outbox, keep_seconds=keep_seconds, dry_run=True).dropped
            ask(f"Drop permanently: {', '.join(map(printable, found))}?", yes=not found)
        done = drop_passed(connection, outbox, keep_seconds=keep_seconds, dry_run=dry_run)
    for name in done.dropped:
        typer.echo(f"{'would drop' if dry_run else 'dropped'}: {printable(name)}")
    if done.kept:
        typer.echo(f"kept: {printable(done.kept)} and what follows: {printable(done.because)}")
    if done.held_segments:
        typer.echo(f"held back by that: {done.held_segments} closed segments, {done.held_bytes / 1e6:,.1f} MB")


@app.command()
def archive(
    url: Annotated[str, typer.Argument(metavar="URL", help="A folder, or a URL of fsspec such as s3://bucket/orders.")],
    config: ConfigFile = None,
    again: Annotated[bool, typer.Option("--again", help="Archive also what is in the archive already.")] = False,
) -> None:
    """Write closed segments into an archive of Parquet files, and read them back. Run it as the owner of the table.

    From the first run on, no segment is dropped before it is in the archive
    as it is then. It needs the extra `archive`.

    Example:  harvest segments archive -f harvest.yaml /srv/archive/orders
    """
    from harvest_lib.archive import archive_segments, closed_segments

    _require_store(url)
    done = 0
    with _open_native(config) as (_, outbox, connection):
        which = closed_segments(connection, outbox) if again else None
        for each in archive_segments(connection, outbox, url, which):
            typer.echo(f"archived: {_archived_text(each)}")
            done += 1
    if not done:
        typer.echo("nothing to archive: every closed segment is in the archive")


@app.command()
def verify(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the archive is.")],
) -> None:
    """Read a whole archive: every file has the bytes and records of its manifest, and no ids are missing.

    Example:  harvest segments verify /srv/archive/orders
    """
    from harvest_lib.archive import verify_archive
    from harvest_lib.archive.urls import shown

    done = 0
    for each in verify_archive(url):
        typer.echo(f"as written: {_archived_text(each)}")
        done += 1
    if not done:
        raise NothingChecked(
            f"the archive {shown(url)} has no segment",
            evidence="there is no manifest in its folder `segments`",
            next_step="correct the URL, or run `harvest segments archive`",
        )


@contextmanager
def _open_native(config: Path | None) -> "Iterator[tuple[HarvestConfig, OutboxTable, psycopg.Connection[Any]]]":
    why = "it has no segments; docs/subscriptions.md says how its records are removed"
    with open_outbox(config, refuse_columns=why) as (configured, outbox, connection):
        outbox.check_native(connection)
        yield configured, outbox, connection


def _require_store(url: str) -> None:
    """Raise Misuse for a URL by which no archive can be written."""
    scheme = url.rpartition("::")[2].partition("://")[0] if "://" in url else ""
    if scheme in _NO_STORES or url.strip() != url or not url:
        raise Misuse(
            f"an archive cannot be written by {scheme}" if scheme else "the URL is empty, or has spaces around it",
            next_step="name a folder, or a URL such as s3://bucket/orders, gs://, abfs:// or sftp://",
        )


def _segment_row(segments: "Segments", connection: "psycopg.Connection[Any]", segment: "Segment") -> dict[str, Any]:
    waited_for = segments.waited_for(connection, segment) if segment.passed_at and not segment.closed_at else []
    state = "closed" if segment.closed_at else f"waits for {', '.join(waited_for)}" if waited_for else "open"
    return {
        "segment": segment.name,
        "lower": segment.lower,
        "upper": segment.upper,
        "bytes": segments.size_bytes(connection, segment),
        "state": "detaching" if segment.detaching else state,
    }


def _detached_row(detached: "Detached") -> dict[str, Any]:
    return {
        "segment": detached.name,
        "lower": detached.lowest_id,
        "upper": None if detached.highest_id is None else detached.highest_id + 1,
        "bytes": None,
        "state": "detached by hand",
        "records": detached.records,
        "unseen": detached.unseen,
    }


def _show_rows(rows: list[dict[str, Any]]) -> None:
    from harvest_lib.cli.tables import print_table, table_of

    cells = [
        (
            row["segment"],
            "start" if row["lower"] is None else str(row["lower"]),
            "no end" if row["upper"] is None else str(row["upper"]),
            "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}",
            row["state"],
        )
        for row in rows
    ]
    print_table(table_of(cells, ("segment", "from", "to", "MB", "state")))


def _archived_text(archived: "Archived") -> str:
    size = f"{archived.bytes / 1e6:,.1f} MB in {archived.files} files"
    return f"{printable(archived.segment)}, {archived.records:,} records, {size}"
