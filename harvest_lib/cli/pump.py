"""`harvest pump`: the equivalent of goharvest's load generator. Writes records into the outbox, for experiments."""

import random
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from harvest_lib.cli.options import ConfigFile, TableName, open_outbox
from harvest_lib.cli.terminal import stop_on_signals, watched
from harvest_lib.cli.usage import Misuse, require_duration, require_table
from harvest_lib.errors import RecordError

if TYPE_CHECKING:
    from rich.progress import Progress

_INTERRUPTED = 130


def pump(
    *,
    keys: Annotated[int, typer.Option("--keys", "-k", min=1, metavar="N", help="Number of different keys.")],
    records: Annotated[int, typer.Option("--records", "-n", min=1, metavar="N", help="Number of records.")],
    config: ConfigFile = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The Kafka topic of the records.")] = "pump",
    transaction: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Records in each transaction.")
    ] = 20,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Pause between transactions, e.g. 100ms.")] = "0s",
    blank: Annotated[bool, typer.Option("--blank", help="Write records without a value: tombstones in Kafka.")] = False,
    value_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="CHARACTERS", help="Length of each value. Default: `value-` and a random number."),
    ] = None,
    headers: Annotated[
        int, typer.Option(min=0, max=1000, metavar="N", help="Headers of each record; the first, `Seq`, is its number.")
    ] = 1,
    table: TableName = None,
) -> None:
    """Write test records into the outbox.

    A single connection writes transaction after transaction. Ctrl-C stops it after
    the current transaction; committed records stay.

    Examples:

      harvest pump -f harvest.yaml --keys 10 --records 1000

      harvest pump -f harvest.yaml --keys 1000 --records 1000000 --transaction 1000 --value-size 200 --topic orders

      harvest pump -f harvest.yaml --keys 10 --records 600 --transaction 1 --interval 100ms --blank
    """
    from harvest_lib.outbox import Load
    from harvest_lib.outbox import pump as pump_into

    if blank and value_size is not None:
        raise Misuse("--blank and --value-size exclude each other", next_step="give one of them")
    require_table(table, "--table")
    load = Load(
        topic=topic,
        keys=keys,
        records=records,
        per_transaction=transaction,
        interval_seconds=require_duration(interval, "--interval"),
        blank=blank,
        value_chars=value_size,
        headers=headers,
    )
    try:
        load.check()
    except RecordError as error:
        raise Misuse(f"--topic: {error.cause}", evidence=error.evidence, next_step=error.next_step) from error
    stopping = threading.Event()
    stop_on_signals(stopping.set)
    began, written = time.monotonic(), 0
    opened = open_outbox(config, table, refuse_columns="pump does not know what its other columns need")
    with opened as (_, outbox, connection), _progress_bar() as progress:
        task = progress.add_task("pump", total=records)
        for written in pump_into(connection, outbox, load, dice=random.Random(), stopping=stopping):  # noqa: S311
            progress.update(task, completed=written)
    seconds = time.monotonic() - began
    transactions = -(-written // transaction)
    typer.echo(
        f"{written:,} records in {transactions:,} transactions, {seconds:.1f} s, {written / seconds:,.0f} records/s"
    )
    if written < records:
        typer.echo(f"interrupted: {records - written:,} records were not written", err=True)
        raise typer.Exit(_INTERRUPTED)


def _progress_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Column with the current rate, in records per second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f}/s", style="cyan")

    return Progress(
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,} of {task.total:,} records"),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        expand=True,
        disable=not watched(),
    )
