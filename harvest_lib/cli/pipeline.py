"""`harvest pipeline run | check | status | resume | show | ack | skip | compact`: pipelines declared in YAML."""

import json
from pathlib import Path
from typing import Annotated

import typer

from harvest_lib.cli.options import Json, LogFormat
from harvest_lib.cli.parsing import Group
from harvest_lib.cli.terminal import printable

app = typer.Typer(
    name="pipeline",
    cls=Group,
    help="Pipelines: one reader, any number of writers, and a commit log. See docs/pipelines.md.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_File = Annotated[Path, typer.Option("--file", "-f", help="The YAML file that declares the pipeline.")]
_Writer = Annotated[str | None, typer.Option("--writer", "-w", help="Only the writer with this name.")]
_Format = Annotated[LogFormat, typer.Option(help="console is for people, json for machines.")]
_Level = Annotated[str, typer.Option(help="A level of Python's logging.")]


@app.command()
def run(file: _File, log_format: _Format = LogFormat.CONSOLE, log_level: _Level = "info") -> None:
    """Run a pipeline until SIGTERM or Ctrl-C, or until a finite reader has ended and everything is written.

    Writers first get the messages they have not acknowledged, one at a time. Then
    the reader starts.

    Example:  harvest pipeline run -f flights.yaml
    """
    from harvest_lib.cli.actions.log_output import configure_logging
    from harvest_lib.cli.actions.pipeline import run_until_stopped
    from harvest_lib.harvester.interpreter import tune_collector
    from harvest_lib.pipeline.declaration import load
    from harvest_lib.pipeline.pipeline import Pipeline

    configure_logging(log_format, log_level)
    tune_collector()
    run_until_stopped(Pipeline(load(file)))


@app.command()
def check(file: Annotated[Path, typer.Argument(help="The YAML file that declares the pipeline.")]) -> None:
    """Explain a declaration, or report all its errors with their lines. Connects to nothing.

    Example:  harvest pipeline check flights.yaml
    """
    from harvest_lib.pipeline.declaration import load
    from harvest_lib.pipeline.diagram import drawn, explained

    declaration = load(file)
    typer.echo(f"{printable(declaration.name)}\n")
    for line in drawn(declaration).split("\n"):
        typer.echo(f"  {printable(line)}")
    typer.echo()
    for line in explained(declaration):
        typer.echo(printable(line))


@app.command()
def status(file: _File, as_json: Json = False) -> None:
    """Show each writer's position in the commit log. The pipeline may be running.

    Example:  harvest pipeline status -f flights.yaml --json
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from harvest_lib.cli.actions.tables import print_table
    from harvest_lib.pipeline import operations
    from harvest_lib.pipeline.declaration import load
    from harvest_lib.pipeline.folder import offsets_folder

    declaration = load(file)
    standing = operations.pipeline_status(declaration)
    writers = [
        {"writer": each.name, "adaptor": each.adaptor, "next": each.position, "behind": each.behind}
        | {"parked": each.parked}
        for each in standing.writers
    ]
    undeclared = [{"writer": name, "next": position} for name, position in standing.undeclared.items()]
    if as_json:
        shown = {"begin": standing.begin, "end": standing.end, "writers": writers, "undeclared": undeclared}
        typer.echo(json.dumps(shown))
        return
    table = Table("writer", "adaptor", "next", "behind", "parked")
    for each in writers:
        texts = (f"{value:,}" if isinstance(value, int) else printable(str(value)) for value in each.values())
        table.add_row(*map(Text, texts))
    console = Console(highlight=False, soft_wrap=True)
    print_table(table)
    last = "is empty" if standing.begin == standing.end else f"has offsets {standing.begin:,} to {standing.end - 1:,}"
    console.print(f"the commit log {last}; the next message gets {standing.end:,}")
    for name in (stands.name for stands in standing.writers if stands.position > standing.end):
        console.print(f"{name} has acknowledged more than the log has: this is not the log of its offsets")
    for name, position in standing.undeclared.items():
        kept = (
            f"{printable(name)} is not declared: the log is kept for it from {position:,} on; to give that up, remove"
        )
        console.print(Text(f"{kept} {printable(str(offsets_folder(declaration.folder, name)))}"))


@app.command()
def resume(
    file: _File,
    step: Annotated[bool, typer.Option("--step", help="Send one message to each writer that is behind.")] = False,
    writer: _Writer = None,
    log_format: _Format = LogFormat.CONSOLE,
    log_level: _Level = "info",
) -> None:
    """Send writers the messages they have not acknowledged, one at a time, then exit. The reader does not start.

    Examples:

      harvest pipeline resume -f flights.yaml

      harvest pipeline resume -f flights.yaml --step --writer lake
    """
    from harvest_lib.cli.actions.log_output import configure_logging
    from harvest_lib.cli.actions.pipeline import message_line, run_until_stopped
    from harvest_lib.pipeline import operations
    from harvest_lib.pipeline.declaration import load
    from harvest_lib.pipeline.pipeline import Pipeline

    if writer is not None and not step:
        raise typer.BadParameter("--writer needs --step", param_hint="--writer")
    configure_logging(log_format, log_level)
    if not step:
        run_until_stopped(Pipeline(load(file)), resume_only=True)
        return
    for done in operations.step(load(file), writer):
        what = "nothing to send" if done.sent is None else f"sent {message_line(done.sent)}"
        typer.echo(f"{done.writer}: {what}; next is offset {done.position:,}, {done.behind:,} behind")


@app.command()
def show(
    offsets: Annotated[str, typer.Argument(metavar="X..Y", help="The first and the last offset, or a single one.")],
    file: _File,
    as_json: Json = False,
) -> None:
    """Show messages of the commit log, as the reader produced them. The pipeline may be running.

    Examples:

      harvest pipeline show 9..15 -f flights.yaml

      harvest pipeline show 14 -f flights.yaml --json | jq .data
    """
    from harvest_lib.cli.actions.pipeline import OFFSET_RANGE, message_json, message_line
    from harvest_lib.pipeline import operations
    from harvest_lib.pipeline.declaration import load

    found = OFFSET_RANGE.fullmatch(offsets)
    if found is None:
        raise typer.BadParameter("write the first and the last offset, as in 9..15", param_hint="X..Y")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise typer.BadParameter(
            f"the first offset must not be greater than the last: {last}..{first}", param_hint="X..Y"
        )
    shown = 0
    for message in operations.messages(load(file), first, last):
        typer.echo(json.dumps(message_json(message)) if as_json else message_line(message, with_data=True))
        shown += 1
    if not shown:
        typer.echo("none of these messages is in the log: they were compacted or skipped", err=True)


@app.command()
def ack(
    offset: Annotated[int, typer.Argument(metavar="N", help="The offset of a writer's next message.", min=0)],
    file: _File,
    without_sending: Annotated[
        bool, typer.Option("--without-sending", help="Confirm that the writer never gets the message.")
    ] = False,
    writer: _Writer = None,
) -> None:
    """Acknowledge a message that a writer rejects, without sending it. It must be the writer's next message.

    Example:  harvest pipeline ack 14 --without-sending --writer lake -f flights.yaml
    """
    from harvest_lib.pipeline import operations
    from harvest_lib.pipeline.declaration import load

    if not without_sending:
        raise typer.BadParameter("to send it: `harvest pipeline resume --step`", param_hint="--without-sending")
    writing = operations.acknowledge(load(file), offset, writer)
    typer.echo(f"{writing.name}: offset {offset:,} acknowledged without sending; next is offset {writing.position:,}")


@app.command()
def skip(
    offset: Annotated[int, typer.Argument(metavar="N", help="The offset in the error message.", min=0)], file: _File
) -> None:
    """Skip damage in the commit log. Messages that cannot be read are lost permanently, for every writer.

    Example:  harvest pipeline skip 4711 -f flights.yaml
    """
    from harvest_lib.pipeline import operations
    from harvest_lib.pipeline.declaration import load

    skipped = operations.skip_damage(load(file), offset)
    for offsets, what in ((skipped.given_up, "given up"), (skipped.unchecked, "kept, though unchecked")):
        if offsets:
            typer.echo(f"offsets {offsets.start:,} to {offsets.stop - 1:,}: {what}")


@app.command()
def compact(file: _File) -> None:
    """Compact the offset log, and closed segments up to the earliest writer's offset.

    Compaction keeps the newest message of each namespace. A running pipeline does
    this by itself.

    Example:  harvest pipeline compact -f flights.yaml
    """
    from harvest_lib.pipeline import operations
    from harvest_lib.pipeline.declaration import load

    compacted = operations.compact(load(file))
    segments = f"{compacted.segments:,} segment{'' if compacted.segments == 1 else 's'}"
    typer.echo(f"{segments} of the commit log compacted, {compacted.freed_bytes:,} bytes freed; offsets compacted")
