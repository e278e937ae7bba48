"""`harvest status`: shows backlog, age of the oldest record, leader and delivery rate."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from harvest_lib.cli.options import ConfigFile, Json, open_outbox
from harvest_lib.cli.terminal import counted, json_text, printable

if TYPE_CHECKING:
    import psycopg
    from rich.table import Table

    from harvest_lib.config import HarvestConfig
    from harvest_lib.outbox import OutboxTable

_SLOW_EVERY_SECONDS = 60.0
"""Interval between readings of sizes, held segments and open transactions. They are slow to read and change slowly."""


def status(
    config: ConfigFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show backlog, age of the oldest record, leader and delivery rate. Reads twice, a second apart.

    Examples:

      harvest status -f harvest.yaml

      harvest status -f harvest.yaml --watch

      harvest status -f harvest.yaml --json | jq .backlog_records
    """
    with open_outbox(config) as (harvest, table, connection):
        readings = StatusReadings(connection, table, harvest)
        if watch and not as_json:
            _watch(readings)
        while True:
            current = readings.next()
            if as_json:
                typer.echo(json_text(asdict(current)))
            else:
                _show(current)
            if not watch:
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One reading of the status. `leaders` has an element for each shard: the client id and host of the group member
    that owns the shard's partition. If the leader is elected without a group, the element is the name of the leading
    process. It is None without a leader. `leader` is the first element."""

    table: str
    backlog_records: int
    backlog_is_estimate: bool
    """True if the backlog has more than 100,000 records. The size of such a backlog is estimated from ids."""
    oldest_age_seconds: float
    marked_records: int
    parked_records: int | None
    held_records: int | None
    """`parked_records` and `held_records` are None if there is no table of parked records, or if this role may not read
    the table."""
    leader: str | None
    leaders: list[str | None]
    members: int | None
    """Number of processes in the pool; None if they are not counted."""
    records_per_second: float
    outbox_bytes: int
    database_bytes: int | None
    """Size of the database; None if this role may not see the size."""
    database_limit_bytes: int | None
    kafka_trouble: str | None
    """The reason why Kafka did not report the leader; None if Kafka reported the leader."""
    notes: list[str]
    """Remarks, for example why there is no leader, why a process cannot lead, or that another pool is in conflict."""
    subscriptions: list[dict[str, Any]]
    """For a table that is not purged: its subscriptions, as in `harvest subscriptions list --json`. The backlog of such
    a table is the backlog of the configured subscription."""


class StatusReadings:
    """Reads the status of an outbox, at most once a second. The rate covers the time since the last reading."""

    def __init__(self, connection: "psycopg.Connection[Any]", table: "OutboxTable", config: "HarvestConfig") -> None:
        from harvest_lib.harvester.status import StatusReader
        from harvest_lib.outbox import check_column_mapping

        if config.columns is None:
            table.check_columns(connection)  # a complete check would need more privileges than SELECT
        else:
            check_column_mapping(connection, table, config.columns)
        self._connection = connection
        self._table = table
        self._config = config
        self._reader = StatusReader(connection, config)
        self._done, self._at = self._reader.done(self._reader.shards()), time.monotonic()
        self._ask_slowly()

    def _ask_slowly(self) -> None:
        self._sizes = self._reader.sizes()
        held = [
            f"the subscription {name!r} holds back {each.segments} segments of {_megabytes(each.bytes)}"
            for name, each in self._reader.held().items()
            if each.segments
        ]
        self._slow_notes = [*held, *self._reader.open_transactions()]
        self._slow_at = time.monotonic()

    def next(self) -> Status:
        from harvest_lib.cli.shards import shard_json
        from harvest_lib.source.parked import parked_table
        from harvest_lib.subscriptions.backlog import Backlog
        from harvest_lib.subscriptions.shards import trouble_notes

        time.sleep(max(0.0, self._at + 1.0 - time.monotonic()))
        shards = self._reader.shards()
        done, at = self._reader.done(shards), time.monotonic()
        rate, self._done, self._at = (done - self._done) / (at - self._at), done, at
        read = self._reader.read(shards)
        known = self._reader.is_known(shards)
        waiting = self._reader.waiting(read) if known else Backlog(records=0)
        leaders = self._reader.leaders()
        counts = parked_table(self._connection, self._table, self._config).counts(self._connection)
        if time.monotonic() - self._slow_at >= _SLOW_EVERY_SECONDS:
            self._ask_slowly()
        return Status(
            table=str(self._table),
            backlog_records=waiting.records,
            backlog_is_estimate=waiting.is_estimate,
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
            notes=[*leaders.notes, *self._reader.detached(), *self._slow_notes, *trouble_notes(shards)],
            subscriptions=[shard_json(*each) for each in read],
        )


def _show(status: Status) -> None:
    from harvest_lib.cli.tables import print_line, print_table

    print_table(_table(status))
    for note in status.notes:
        print_line(*_note(note))


def _watch(readings: StatusReadings) -> NoReturn:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from harvest_lib.cli.tables import Fitting

    with Live(refresh_per_second=4) as live:
        while True:
            current = readings.next()
            notes = [Text.assemble(*_note(note)) for note in current.notes]
            live.update(Group(Fitting(_table(current)), *notes))


def _note(note: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("note: ", "bold"), (printable(note), "yellow")


def _table(status: Status) -> "Table":
    from rich.text import Text

    from harvest_lib.cli.shards import lag_text
    from harvest_lib.cli.tables import Cell, table_of

    marked = f", {status.marked_records:,} of them marked" if status.marked_records else ""
    backlog = lag_text(status.backlog_records, is_estimate=status.backlog_is_estimate)
    rows: list[tuple[str, Cell]] = [("backlog", backlog + marked)]
    if status.parked_records is not None:
        parked = f"{counted(status.parked_records, 'record')}, {status.held_records:,} held behind them"
        rows.append(("parked", (parked, "yellow" if status.parked_records else "none")))
    rows.append(("oldest", f"{status.oldest_age_seconds:,.1f} s"))
    for shard, each in enumerate(status.leaders):
        name = "leader" if len(status.leaders) == 1 else f"leader {shard}"
        leader = each or ("nobody", "yellow")
        rows.append((name, (status.kafka_trouble, "red") if status.kafka_trouble else leader))
    if status.members is not None:
        rows.append(("pool", f"{status.members} {'process' if status.members == 1 else 'processes'}"))
    for reader in status.subscriptions:
        about = "about " if reader["lag_is_estimate"] else ""
        behind = f"{reader['name']} {reader['shard']}/{reader['shards']}: {about}{reader['lag_records']:,} behind"
        led = () if reader["is_led"] else (", ", ("nobody leads it", "yellow"))
        rows.append(("subscription", Text.assemble(printable(behind), *led)))
    rows.append(("rate", f"{status.records_per_second:,.0f} records/s"))
    rows.append(("on disk", Text.assemble(*_on_disk(status))))
    return table_of(rows, title=f"outbox {status.table}")


def _on_disk(status: Status) -> Iterator[str | tuple[str, str]]:
    yield _megabytes(status.outbox_bytes)
    if status.database_bytes is None:
        return
    yield f", of a database of {_megabytes(status.database_bytes)}"
    if status.database_limit_bytes is not None:
        style = "red" if status.database_bytes >= status.database_limit_bytes else "none"
        yield ", "
        yield f"which may have {_megabytes(status.database_limit_bytes)}", style


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
