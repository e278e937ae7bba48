"""`harvest pipeline run | check | status | resume | show | ack | skip | compact`: pipelines declared in YAML."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harvest_lib.cli.confirmation import Yes, ask, require_answer
from harvest_lib.cli.options import Json, Listen, LogFormatOption, LogLevel
from harvest_lib.cli.parsing import group
from harvest_lib.cli.terminal import counted, json_text, printable, stop_on_signals
from harvest_lib.cli.usage import Misuse

if TYPE_CHECKING:
    from harvest_lib.pipeline.declaration import Declaration
    from harvest_lib.pipeline.message import PipelineMessage
    from harvest_lib.pipeline.operations import PipelineStatus

app = group("pipeline", "Pipelines: a reader, any number of writers, and a commit log. See docs/pipelines.md.")

_File = Annotated[Path, typer.Option("--file", "-f", help="The YAML file that declares the pipeline.")]
_Writer = Annotated[str | None, typer.Option("--writer", "-w", metavar="NAME", help="Only the writer with this name.")]

_OFFSET_RANGE = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?")


@app.command()
def run(
    file: _File, log_format: LogFormatOption = "console", log_level: LogLevel = "info", listen: Listen = None
) -> None:
    """Run a pipeline until SIGTERM or Ctrl-C, or until a finite reader has ended and everything is written.

    Writers first get the messages they have not acknowledged, one at a time. Then
    the reader starts.

    Example:  harvest pipeline run -f flights.yaml
    """
    from harvest_lib.cli.log_output import configure_logging

    configure_logging(log_format, log_level)
    _run_until_stopped(file, listen=listen)


@app.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The YAML file that declares the pipeline.", show_default=False),
    ] = None,
    same_file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="The same file, named as for the other commands."),
    ] = None,
) -> None:
    """Explain a declaration, or report all its errors with their lines. Connects to nothing.

    Examples:

      harvest pipeline check flights.yaml

      harvest pipeline check -f flights.yaml
    """
    from harvest_lib.pipeline.declaration import load
    from harvest_lib.pipeline.diagram import drawn, explained

    given = [each for each in (file, same_file) if each is not None]
    if len(given) != 1:
        raise Misuse(
            "FILE is missing" if not given else "FILE is given twice",
            next_step="name the file, once: by FILE or by -f FILE",
        )
    declaration = load(*given)
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
    from harvest_lib.pipeline import declaration, operations

    declared = declaration.load(file)
    found = operations.pipeline_status(declared)
    if as_json:
        writers = [
            {"writer": each.name, "adaptor": each.adaptor, "next": each.position, "behind": each.behind}
            | {"parked": each.parked}
            for each in found.writers
        ]
        undeclared = [{"writer": name, "next": position} for name, position in found.undeclared.items()]
        typer.echo(json_text({"begin": found.begin, "end": found.end, "writers": writers, "undeclared": undeclared}))
    else:
        _show_status(declared, found)


@app.command()
def resume(
    file: _File,
    step: Annotated[bool, typer.Option("--step", help="Send one message to each writer that is behind.")] = False,
    writer: _Writer = None,
    log_format: LogFormatOption = "console",
    log_level: LogLevel = "info",
) -> None:
    """Send writers the messages they have not acknowledged, one at a time, then exit. The reader does not start.

    Examples:

      harvest pipeline resume -f flights.yaml

      harvest pipeline resume -f flights.yaml --step --writer lake
    """
    from harvest_lib.cli.log_output import configure_logging
    from harvest_lib.pipeline import declaration, operations

    if writer is not None and not step:
        raise Misuse("--writer needs --step", next_step="add --step, or leave --writer out")
    configure_logging(log_format, log_level)
    if not step:
        _run_until_stopped(file, resume_only=True)
        return
    for done in operations.step(declaration.load(file), writer):
        what = "nothing to send" if done.sent is None else f"sent {_message_line(done.sent)}"
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
    from harvest_lib.pipeline import declaration, operations

    found = _OFFSET_RANGE.fullmatch(offsets)
    if found is None:
        raise Misuse(
            f"{offsets!r} is no range of offsets",
            next_step="write the first and the last offset, as in 9..15, or one offset",
        )
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise Misuse(f"the first offset of {offsets} is after the last", next_step=f"write {last}..{first}")
    shown = 0
    for message in operations.messages(declaration.load(file), first, last):
        _show_message(message, as_json=as_json)
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
    from harvest_lib.pipeline import declaration, operations

    if not without_sending:
        raise Misuse(
            "--without-sending is missing",
            next_step="add it; to send the message instead: `harvest pipeline resume --step`",
        )
    writing = operations.acknowledge(declaration.load(file), offset, writer)
    typer.echo(f"{writing.name}: offset {offset:,} acknowledged without sending; next is offset {writing.position:,}")


@app.command()
def skip(
    offset: Annotated[int, typer.Argument(metavar="N", help="The offset in the error message.", min=0)],
    file: _File,
    yes: Yes = False,
) -> None:
    """Skip damage in the commit log. Messages that cannot be read are lost permanently, for every writer.

    Example:  harvest pipeline skip 4711 -f flights.yaml
    """
    from harvest_lib.pipeline import declaration, operations

    require_answer(yes=yes)
    declared = declaration.load(file)
    ask(f"Give up the unreadable messages at offset {offset:,} permanently, for every writer?", yes=yes)
    skipped = operations.skip_damage(declared, offset)
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
    from harvest_lib.pipeline import declaration, operations

    compacted = operations.compact(declaration.load(file))
    segments = counted(compacted.segments, "segment")
    typer.echo(f"{segments} of the commit log compacted, {compacted.freed_bytes:,} bytes freed; offsets compacted")


def _run_until_stopped(file: Path, *, resume_only: bool = False, listen: str | None = None) -> None:
    from harvest_lib.harvester.interpreter import tune_interpreter
    from harvest_lib.pipeline.allocator import return_large_values
    from harvest_lib.pipeline.declaration import load
    from harvest_lib.pipeline.pipeline import Pipeline
    from harvest_lib.pipeline.telemetry import PipelineTelemetry
    from harvest_lib.telemetry.service import observed

    tune_interpreter()
    return_large_values()
    pipeline = Pipeline(load(file))
    stop_on_signals(pipeline.stop)
    with observed(PipelineTelemetry(pipeline), listen):
        pipeline.run(resume_only=resume_only)


def _show_status(declaration: "Declaration", status: "PipelineStatus") -> None:
    from harvest_lib.cli.tables import print_line, print_table, table_of
    from harvest_lib.pipeline.folder import offsets_folder

    rows = [
        (each.name, each.adaptor, f"{each.position:,}", f"{each.behind:,}", f"{each.parked:,}")
        for each in status.writers
    ]
    print_table(table_of(rows, ("writer", "adaptor", "next", "behind", "parked")))
    last = "is empty" if status.begin == status.end else f"has offsets {status.begin:,} to {status.end - 1:,}"
    print_line(f"the commit log {last}; the next message gets {status.end:,}")
    for name in (each.name for each in status.writers if each.position > status.end):
        print_line(f"{name} has acknowledged more than the log has: this is not the log of its offsets")
    for name, position in status.undeclared.items():
        kept = f"{printable(name)} is not declared: the log is kept for it from {position:,} on"
        folder = printable(str(offsets_folder(declaration.folder, name)))
        print_line(f"{kept}; to give that up, remove {folder}")


def _message_line(message: "PipelineMessage") -> str:
    return f"{message.offset} {message.mode.name.lower()} {message.op.name.lower()} {printable(message.namespace)}"


def _show_message(message: "PipelineMessage", *, as_json: bool) -> None:
    from harvest_lib.pipeline import extended_json

    data = extended_json.dumps(message.data).decode()
    if not as_json:
        typer.echo(f"{_message_line(message)} {printable(data)}")
        return
    shown = {
        "offset": message.offset,
        "op": message.op.name.lower(),
        "mode": message.mode.name.lower(),
        "timestamp": message.timestamp,
        "namespace": message.namespace,
        "data": json.loads(data),
    }
    typer.echo(json_text(shown))
