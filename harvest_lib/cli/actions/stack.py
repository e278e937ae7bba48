"""Output of `harvest up`, `ps` and `logs` about the local stack."""

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from harvest_lib.cli.actions.tables import print_table
from harvest_lib.cli.terminal import json_text
from harvest_lib.errors import StackError, install_hint

if TYPE_CHECKING:
    from harvest_lib.local_stack.description import Description

_MEBIBYTE = 1024 * 1024


def print_lines(file: Path, text: bytes, *, prefix: bool) -> None:
    for line in text.decode(errors="replace").splitlines():
        sys.stdout.write(f"{file.stem} | {line}\n" if prefix else f"{line}\n")
    sys.stdout.flush()


def last_lines(file: Path, count: int) -> tuple[bytes, int]:
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


def show_description(description: "Description", state: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(description.to_json())
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for server in description.servers:
        place = f"port {server.port}, " if server.port else ""
        table.add_row(server.name, f"{server.version}, {place}pid {server.pid}")
    content = json.loads(description.to_json())
    table.add_row("DSN", content["dsn"])
    if "********" in content["dsn"]:
        table.add_row("password", f"in {state_folder() / 'stack.json'}")
    table.add_row("bootstrap", content["bootstrap_servers"])
    for server in description.servers:
        if server.url:
            table.add_row(server.name.partition("-")[0].capitalize(), server.url)
    if description.airflow_login:
        table.add_row("Airflow login", description.airflow_login)
    if description.dags:
        table.add_row("DAGs", description.dags)
    console = Console(soft_wrap=True)
    console.print(f"[bold green]{state}[/]")
    print_table(table)
    if description.secure:
        typer.echo(local_stack("secure").settings_text(Path(description.secure)))


def show_servers(description: "Description", *, as_json: bool) -> None:
    addresses = {server.name: server.url for server in description.servers if server.url}
    rows = [_server_row(server.name, server.version, server.pid, server.port or None) for server in description.servers]
    rows.append(_server_row("supervisor", "", description.pid, None))
    rows = [{**row, "url": addresses.get(row["server"], "")} for row in rows]
    if as_json:
        typer.echo(json_text(rows, indent=2))
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


def _server_row(name: str, version: str, pid: int, port: int | None) -> dict[str, Any]:
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
    """Return the bytes of memory of a process alone: Postgres's processes share most of theirs."""
    try:
        information = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(information.rss - getattr(information, "shared", 0))


def state_folder() -> Path:
    state: Path = local_stack("state").default_state()
    return state


def local_stack(name: str) -> Any:
    """Return a module of the local stack, whose requirements are not those of the library."""
    try:
        return importlib.import_module(f"harvest_lib.local_stack.{name}")
    except ModuleNotFoundError as error:
        raise StackError(
            "the local stack is not installed",
            evidence=f"there is no module {error.name}",
            next_step=install_hint("local"),
        ) from error
