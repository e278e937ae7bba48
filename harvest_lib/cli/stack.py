"""`harvest up | down | ps | logs`: the local stack from the command line.

Exit codes: 0 done, 7 the stack could not be brought up or down (the message says why), and 1 from `ps` when no stack
is up.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from harvest_lib.cli.tables import print_table
from harvest_lib.errors import StackError

if TYPE_CHECKING:
    from harvest_lib.local_stack.description import Description

app = typer.Typer(rich_markup_mode="rich")

_MEBIBYTE = 1024 * 1024
_FOLLOW_SECONDS = 0.2

_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command(epilog="Example: harvest up · harvest up --all · harvest up --secure · harvest up --brokers 3 --fresh")
def up(
    *,
    brokers: Annotated[int, typer.Option(help="Kafka brokers: 1 or 3.")] = 1,
    postgres: Annotated[str, typer.Option(help="Version of Postgres: 18 or 16.")] = "18",
    kafka: Annotated[str, typer.Option(help="Version of Kafka: 4.3.1 or 3.9.1.")] = "4.3.1",
    all_: Annotated[bool, typer.Option("--all", help="Start Dagster and Airflow as well.")] = False,
    definitions: Annotated[
        str, typer.Option(help="With --all: the module whose definitions Dagster serves.")
    ] = "dagster_harvest.definitions",
    secure: Annotated[
        bool, typer.Option("--secure", help="With TLS, users and ACLs; shows how clients connect.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the data of earlier runs first.")] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and stop the stack at Ctrl-C.")] = False,
    as_json: _JsonOption = False,
) -> None:
    """Start Postgres and Kafka on this machine, with --all Dagster and Airflow too, and return once all of it answers.

    Data is kept between runs in `.harvest` (HARVEST_HOME names another folder). HARVEST_DSN and
    HARVEST_BOOTSTRAP_SERVERS name servers to use instead. With --secure nobody gets in without TLS, nor may do what was
    not granted; its data is kept apart, its keys and passwords in the folder `secure` beside it. Exits with 7 when the
    stack does not come up.
    """
    supervisor = _part("supervisor")
    state = _state()
    served = definitions if all_ else ""
    if foreground:
        supervisor.stop_on_signals()
        try:
            with _part("stack").Stack(
                state, postgres, kafka, brokers, fresh=fresh, definitions=served, secure=secure
            ) as stack:
                _show_up(stack.describe(), "up, until Ctrl-C", as_json=as_json)
                supervisor.hold(stack)
        except supervisor.Stopped:
            return
    description, already = supervisor.up(
        state, postgres=postgres, kafka=kafka, brokers=brokers, fresh=fresh, definitions=served, secure=secure
    )
    _show_up(description, "already running" if already else "up", as_json=as_json)


@app.command(epilog="Example: harvest down")
def down(*, as_json: _JsonOption = False) -> None:
    """Stop the stack and wait until it is gone; its data stays. Exits with 7 when it does not end."""
    ended = _part("supervisor").down(_state())
    if as_json:
        typer.echo(json.dumps({"ended": ended}))
    else:
        typer.echo("down" if ended else "nothing was running")


@app.command(epilog="Example: harvest ps · harvest ps --json")
def ps(*, as_json: _JsonOption = False) -> None:
    """Show the servers of the stack. Exits with 1 when no stack is up."""
    description = _part("description").running(_state())
    if description is None:
        typer.echo("[]" if as_json else "nothing is running; start it with `harvest up`")
        raise typer.Exit(1)
    rows = [_row(server.name, server.version, server.pid, server.port or None) for server in description.servers]
    rows.append(_row("supervisor", "", description.pid, None))
    addresses = {server.name: server.url for server in description.servers if server.url}
    rows = [{**row, "url": addresses.get(row["server"], "")} for row in rows]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    columns = ["server", "version", "pid", "port", "state", "memory", *(["url"] if addresses else [])]
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        memory = f"{row['memory_bytes'] // _MEBIBYTE} MB"
        cells = [row["server"], row["version"], str(row["pid"]), str(row["port"] or ""), row["state"], memory]
        table.add_row(*cells, *([row["url"]] if addresses else []))
    print_table(table)
    if description.airflow_login:
        Console(soft_wrap=True).print(f"Airflow's login: {description.airflow_login}")


@app.command(epilog="Example: harvest logs · harvest logs kafka -n 100 · harvest logs postgres -f")
def logs(
    server: Annotated[
        str, typer.Argument(help="postgres, kafka, dagster, airflow or supervisor; all of them by default.")
    ] = "",
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is logged from now on.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Lines from the end, of each log.")] = 20,
) -> None:
    """Show what the servers logged, also after they ended. Exits with 7 when there is no such log."""
    files = sorted((_state() / "logs").glob(f"{server}*.log"))
    if not files:
        raise StackError(
            f"there is no log of {server or 'the stack'}",
            next_step="name postgres, kafka, dagster, airflow or supervisor, after `harvest up` has run once",
        )
    prefix = len(files) > 1
    ends = {}
    for file in files:
        text, ends[file] = _last_lines(file, lines)
        _print_lines(file, text, prefix=prefix)
    while follow:
        try:
            time.sleep(_FOLLOW_SECONDS)
        except KeyboardInterrupt:
            return
        for file in files:
            with file.open("rb") as log:
                if file.stat().st_size < ends[file]:
                    ends[file] = 0  # begun anew
                log.seek(ends[file])
                text = log.read()
                ends[file] = log.tell()
            _print_lines(file, text, prefix=prefix)


def _print_lines(file: Path, text: bytes, *, prefix: bool) -> None:
    for line in text.decode(errors="replace").splitlines():
        sys.stdout.write(f"{file.stem} | {line}\n" if prefix else f"{line}\n")
    sys.stdout.flush()


def _last_lines(file: Path, count: int) -> tuple[bytes, int]:
    """Return the last lines of a file, read from its end, and where the file ended."""
    with file.open("rb") as log:
        position = end = log.seek(0, 2)
        text = b""
        while position and text.count(b"\n") <= count:
            step = min(65536, position)
            position -= step
            log.seek(position)
            text = log.read(step) + text
    return b"".join(text.splitlines(keepends=True)[-count:] if count else []), end


def _show_up(description: "Description", state: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(description.to_json())
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for server in description.servers:
        place = f"port {server.port}, " if server.port else ""
        table.add_row(server.name, f"{server.version}, {place}pid {server.pid}")
    content = json.loads(description.to_json())
    table.add_row("DSN", content["dsn"])
    table.add_row("bootstrap", content["bootstrap_servers"])
    for server in description.servers:
        if server.url:
            table.add_row(server.name.partition("-")[0].capitalize(), server.url)
    if description.airflow_login:
        table.add_row("Airflow login", description.airflow_login)
    console = Console(soft_wrap=True)
    console.print(f"[bold green]{state}[/]")
    print_table(table)
    if description.secure:
        typer.echo(_part("secure").settings_text(Path(description.secure)))


def _row(name: str, version: str, pid: int, port: int | None) -> dict[str, Any]:
    psutil = importlib.import_module("psutil")
    try:
        process = psutil.Process(pid)
        status = process.status()
        state = {psutil.STATUS_ZOMBIE: "ended", psutil.STATUS_STOPPED: "frozen"}.get(status, "running")
        family = [process, *([] if name == "supervisor" else process.children(recursive=True))]
        memory = sum(_memory(member, psutil) for member in family)
    except psutil.NoSuchProcess:
        state, memory = "ended", 0
    return {"server": name, "version": version, "pid": pid, "port": port, "state": state, "memory_bytes": memory}


def _memory(process: Any, psutil: Any) -> int:
    """Return what a process alone takes: Postgres's processes share most of theirs."""
    try:
        information = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(information.rss - getattr(information, "shared", 0))


def _state() -> Path:
    state: Path = _part("state").default_state()
    return state


def _part(name: str) -> Any:
    """Return a module of the local stack, whose requirements are not those of the library."""
    try:
        return importlib.import_module(f"harvest_lib.local_stack.{name}")
    except ModuleNotFoundError as error:
        raise StackError(
            "the local stack is not installed",
            evidence=f"there is no module {error.name}",
            next_step="pip install 'outbox-harvester[local,spark]'",
        ) from error
