"""Work of `harvest pipeline`: run a pipeline, show its status and its messages."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harvest_lib.cli.actions.tables import print_table
from harvest_lib.cli.terminal import json_text, printable, stop_on_signals
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.declaration import Declaration, load
from harvest_lib.pipeline.folder import offsets_folder
from harvest_lib.pipeline.message import Message
from harvest_lib.pipeline.operations import PipelineStatus
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.telemetry import PipelineTelemetry
from harvest_lib.telemetry.otel_metrics import reported
from harvest_lib.telemetry.server import Listener

OFFSET_RANGE = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?")


def run_until_stopped(file: Path, *, resume_only: bool = False, listen: str | None = None) -> None:
    pipeline = Pipeline(load(file))
    tune_interpreter()
    stop_on_signals(pipeline.stop)
    telemetry = PipelineTelemetry(pipeline)
    with Listener(listen, telemetry) if listen else nullcontext(), reported(telemetry):
        pipeline.run(resume_only=resume_only)


def show_status(declaration: Declaration, status: PipelineStatus) -> None:
    table = Table("writer", "adaptor", "next", "behind", "parked")
    for each in status.writers:
        counts = (f"{count:,}" for count in (each.position, each.behind, each.parked))
        table.add_row(*map(Text, (printable(each.name), printable(each.adaptor), *counts)))
    console = Console(highlight=False, soft_wrap=True)
    print_table(table)
    last = "is empty" if status.begin == status.end else f"has offsets {status.begin:,} to {status.end - 1:,}"
    console.print(f"the commit log {last}; the next message gets {status.end:,}")
    for name in (each.name for each in status.writers if each.position > status.end):
        console.print(f"{name} has acknowledged more than the log has: this is not the log of its offsets")
    for name, position in status.undeclared.items():
        kept = (
            f"{printable(name)} is not declared: the log is kept for it from {position:,} on; to give that up, remove"
        )
        console.print(Text(f"{kept} {printable(str(offsets_folder(declaration.folder, name)))}"))


def message_line(message: Message) -> str:
    return f"{message.offset} {message.mode.name.lower()} {message.op.name.lower()} {printable(message.namespace)}"


def show_message(message: Message, *, as_json: bool) -> None:
    data = extended_json.dumps(message.data).decode()
    if not as_json:
        typer.echo(f"{message_line(message)} {printable(data)}")
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
