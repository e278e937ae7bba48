"""Readings of `harvest status`, and their output."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psycopg
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harvest_lib.cli.actions.outbox import open_outbox
from harvest_lib.cli.actions.park import parked_table
from harvest_lib.cli.actions.subscriptions import shard_json
from harvest_lib.cli.actions.tables import Fitting, print_table
from harvest_lib.cli.terminal import printable
from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable, check_column_mapping
from harvest_lib.outbox.held_segments import Held
from harvest_lib.outbox.table import Backlog
from harvest_lib.subscriptions.admin import unreadable_note


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One reading. `leaders` are, by shard, the client id and host of the group member that owns its partition, or the
    session that holds its lock; None for a shard without a leader. `leader` is the first of them."""

    table: str
    backlog_records: int
    oldest_age_seconds: float
    marked_records: int
    parked_records: int | None
    held_records: int | None
    """Both are None if there is no table of parked records, or no right to read it."""
    leader: str | None
    leaders: list[str | None]
    members: int | None
    """Number of processes in the pool; None if they are not counted."""
    records_per_second: float
    outbox_bytes: int
    database_bytes: int | None
    """None where our role may not see it."""
    database_limit_bytes: int | None
    kafka_trouble: str | None
    """Why Kafka could not tell the leader."""
    notes: list[str]
    """Why there is no leader, why a process cannot lead, or another pool that is in conflict."""
    subscriptions: list[dict[str, Any]]
    """Readers of a table that is not purged, as in `harvest subscriptions list --json`. The backlog is then that of the
    configured subscription, counted up to 100,000."""


_SLOW_EVERY_SECONDS = 60.0
"""Sizes, segments that are held and open transactions take long to find out, and change slowly: asked again after so
long."""


class StatusReadings:
    """Read an outbox every second. The rate covers the time since the last reading."""

    def __init__(self, connection: psycopg.Connection[Any], table: OutboxTable, config: HarvestConfig) -> None:
        self._connection = connection
        self._table = table
        self._config = config
        self._reader = StatusReader(connection, config)
        self._done, self._at = self._reader.done(self._reader.shards()), time.monotonic()
        self._ask_slowly()

    def _ask_slowly(self) -> None:
        self._sizes, self._held = self._reader.sizes(), self._reader.held()
        self._open = self._reader.open_transactions()
        self._slow_at = time.monotonic()

    def next(self) -> Status:
        time.sleep(max(0.0, self._at + 1.0 - time.monotonic()))
        shards = self._reader.shards()
        done, at = self._reader.done(shards), time.monotonic()
        rate, self._done, self._at = (done - self._done) / (at - self._at), done, at
        read = self._reader.read(shards)
        known = self._reader.is_known(shards)
        waiting = self._reader.waiting(read) if known else Backlog(records=0, age_seconds=0.0)
        leaders = self._reader.leaders()
        counts = parked_table(self._connection, self._table, self._config).counts(self._connection)
        if time.monotonic() - self._slow_at >= _SLOW_EVERY_SECONDS:
            self._ask_slowly()
        unreadable = [unreadable_note(each) for each in shards if each.checkpoint_trouble]
        return Status(
            table=str(self._table),
            backlog_records=waiting.records,
            oldest_age_seconds=round(waiting.age_seconds, 3),
            marked_records=waiting.marked,
            parked_records=counts.parked if counts is not None else None,
            held_records=counts.held if counts is not None else None,
            leader=leaders.by_shard[0],
            leaders=leaders.by_shard,
            members=leaders.members,
            records_per_second=round(max(0.0, rate), 1),
            outbox_bytes=self._sizes.outbox,
            database_bytes=self._sizes.database,
            database_limit_bytes=self._config.database_limit_bytes,
            kafka_trouble=leaders.trouble,
            notes=[*leaders.notes, *self._reader.detached(), *_held_notes(self._held), *self._open, *unreadable],
            subscriptions=[shard_json(*each) for each in read],
        )


@contextmanager
def open_readings(config: Path | None) -> Iterator[StatusReadings]:
    with open_outbox(config) as (harvest, table, connection):
        if harvest.columns is None:
            table.check_columns(connection)  # status needs no privilege but SELECT
        else:
            check_column_mapping(connection, table, harvest.columns)
        yield StatusReadings(connection, table, harvest)


def show_status(status: Status) -> None:
    print_table(_status_table(status))
    for note in _note_lines(status):
        Console(highlight=False).print(note, soft_wrap=True)


def watch_status(readings: StatusReadings) -> NoReturn:
    with Live(refresh_per_second=4) as live:
        while True:
            current = readings.next()
            live.update(Group(Fitting(_status_table(current)), *_note_lines(current)))


def _status_table(status: Status) -> Table:
    grid = Table(title=f"outbox {escape(status.table)}", show_header=False)
    marked = f", {status.marked_records:,} of them marked" if status.marked_records else ""
    grid.add_row("backlog", _records(status.backlog_records) + marked)
    if status.parked_records is not None:
        style = "yellow" if status.parked_records else "none"
        grid.add_row(
            "parked", f"[{style}]{_records(status.parked_records)}, {status.held_records:,} held behind them[/]"
        )
    grid.add_row("oldest", f"{status.oldest_age_seconds:,.1f} s")
    for shard, each in enumerate(status.leaders):
        leader = escape(each) if each else "[yellow]nobody[/]"
        name = "leader" if len(status.leaders) == 1 else f"leader {shard}"
        grid.add_row(name, f"[red]{escape(status.kafka_trouble)}[/]" if status.kafka_trouble else leader)
    if status.members is not None:
        grid.add_row("pool", f"{status.members} {'process' if status.members == 1 else 'processes'}")
    for reader in status.subscriptions:
        more = "+" if reader["lag_is_estimate"] else ""
        led = "" if reader["is_led"] else ", [yellow]nobody leads it[/]"
        name = f"{escape(reader['name'])} {reader['shard']}/{reader['shards']}"
        grid.add_row("subscription", f"{name}: {reader['lag_records']:,}{more} behind{led}")
    grid.add_row("rate", f"{status.records_per_second:,.0f} records/s")
    grid.add_row("on disk", _on_disk(status))
    return grid


def _on_disk(status: Status) -> str:
    said = f"{status.outbox_bytes / 1e6:,.1f} MB"
    if status.database_bytes is None:
        return said
    said += f", of a database of {status.database_bytes / 1e6:,.1f} MB"
    if status.database_limit_bytes is None:
        return said
    style = "red" if status.database_bytes >= status.database_limit_bytes else "none"
    return f"{said}, [{style}]which may have {status.database_limit_bytes / 1e6:,.1f} MB[/]"


def _held_notes(held: Mapping[str, Held]) -> list[str]:
    return [
        f"the subscription {name!r} holds back {each.segments} segments of {each.bytes / 1e6:,.1f} MB"
        for name, each in held.items()
        if each.segments
    ]


def _note_lines(status: Status) -> list[Text]:
    return [Text.assemble(("note: ", "bold"), (printable(note), "yellow")) for note in status.notes]


def _records(number: int) -> str:
    return f"{number:,} {'record' if number == 1 else 'records'}"
