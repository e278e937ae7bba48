"""`harvest up | down | ps | logs`: commands for the local stack.

Exit codes: 0 done, 7 the stack could not be started or stopped (the message has the reason), and 13 from `ps` when no
stack is up.
"""

import importlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harvest_lib.cli.confirmation import Yes, ask, require_answer
from harvest_lib.cli.options import BROKERS, Json, KafkaVersion, PostgresVersion
from harvest_lib.cli.terminal import json_text
from harvest_lib.cli.usage import Misuse, require_choice
from harvest_lib.errors import FOUND_EXIT_CODE, StackError, install_hint

if TYPE_CHECKING:
    from harvest_lib.local_stack.description import Description
    from harvest_lib.local_stack.stack import Stack

_DATA = re.compile("postgres-|kafka-")
_FOLLOW_SECONDS = 0.2
_BAR, _BAR_SECONDS, _LINE_SECONDS = 30, 0.1, 5.0
_KAFKA_MEGABYTES = 45
_MEBIBYTE = 1024 * 1024


def up(
    *,
    brokers: Annotated[int, typer.Option(metavar="1|3", help="Kafka brokers: 1 or 3.")] = 1,
    postgres: Annotated[PostgresVersion, typer.Option(metavar="18|16", help="Version of Postgres: 18 or 16.")] = "18",
    kafka: Annotated[
        KafkaVersion, typer.Option(metavar="4.3.1|3.9.1", help="Version of Kafka: 4.3.1 or 3.9.1.")
    ] = "4.3.1",
    secure: Annotated[
        bool, typer.Option("--secure", help="Use TLS, users and ACLs, and show how clients connect.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the data of earlier runs first.")] = False,
    yes: Yes = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, and stop the stack at Ctrl-C.")
    ] = False,
    exports: Annotated[
        bool, typer.Option("--exports", help='Print the lines for a shell: eval "$(harvest up --exports)".')
    ] = False,
    as_json: Json = False,
) -> None:
    """Start Postgres and Kafka on this machine, and return once they answer.

    Data is kept between runs in `.harvest` (HARVEST_HOME names another folder).
    HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS name existing servers to use
    instead. With --secure, clients need TLS and explicit grants. A secure stack
    has its own data; keys and passwords are in the folder `secure` next to it.
    Exits with 7 if the stack does not start.

    Examples:

      harvest up

      harvest up --secure

      harvest up --brokers 3 --fresh --yes
    """
    require_choice(brokers, "--brokers", BROKERS)
    if exports and (foreground or as_json):
        raise Misuse("--exports excludes --foreground and --json", next_step="give one of them")
    confirm_fresh(fresh=fresh, yes=yes)
    state = state_folder()
    wanted: dict[str, Any] = {"postgres": postgres, "kafka": kafka, "brokers": brokers, "fresh": fresh}
    wanted["secure"] = secure
    if foreground:
        bring_kafka(kafka, state)
        hold(lambda: local_stack("stack").Stack(state, **wanted), as_json=as_json)
        return
    description, already = start_servers(state, **wanted)
    if exports:
        typer.echo(_exports(description))
        return
    show(description, "already running" if already else "up", as_json=as_json)


def down(*, as_json: Json = False) -> None:
    """Stop the stack and wait until it has stopped. The data stays.

    Exits with 0 if nothing was running, and with 7 if the stack does not stop.

    Example:  harvest down
    """
    ended = local_stack("supervisor").down(state_folder())
    if as_json:
        typer.echo(json_text({"ended": ended}))
    else:
        typer.echo("down" if ended else "nothing was running")


def ps(*, as_json: Json = False) -> None:
    """Show the servers of the stack. Exits with 13 if no stack is running.

    Examples:

      harvest ps

      harvest ps --json
    """
    description = local_stack("description").running(state_folder())
    if description is None:
        typer.echo("[]" if as_json else "nothing is running; start it with `harvest up`")
        raise typer.Exit(FOUND_EXIT_CODE)
    _show_servers(description, as_json=as_json)


def logs(
    server: Annotated[
        str,
        typer.Argument(
            metavar="SERVER", help="postgres, kafka, another server of `harvest ps`, or supervisor; default: all."
        ),
    ] = "",
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new lines as they are logged.")] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, metavar="N", help="Number of lines from the end of each log.")
    ] = 20,
) -> None:
    """Show the logs of the servers, including stopped servers. Exits with 7 if there is no such log.

    Examples:

      harvest logs

      harvest logs kafka -n 100

      harvest logs postgres -f
    """
    files = sorted((state_folder() / "logs").glob(f"{server}*.log"))
    if not files:
        raise StackError(
            f"there is no log of {server or 'the stack'}",
            next_step="name a server that `harvest ps` shows, or supervisor, after `harvest up` has run once",
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
                    ends[file] = 0  # the log was replaced
                log.seek(ends[file])
                text = log.read()
                ends[file] = log.tell()
            _print_lines(file, text, prefix=prefix)


def state_folder() -> Path:
    """Return the state folder of the stack. Raises StackError if the local stack is not installed."""
    state: Path = local_stack("state").default_state()
    return state


def start_servers(
    state: Path,
    *,
    postgres: PostgresVersion = "18",
    kafka: KafkaVersion = "4.3.1",
    brokers: int = 1,
    fresh: bool = False,
    secure: bool = False,
) -> "tuple[Description, bool]":
    """Start the servers in the background. Return their description, and True if they were already running. Raises
    StackError."""
    bring_kafka(kafka, state)
    wanted = {"postgres": postgres, "kafka": kafka, "brokers": brokers, "fresh": fresh, "secure": secure}
    found: tuple[Description, bool] = local_stack("supervisor").up(state, wanted)
    return found


def bring_kafka(version: str, state: Path) -> None:
    """Download the jars of a Kafka broker unless they are there, or servers run, and show the progress on standard
    error: a bar on a terminal, else a line every few seconds. Raises StackError."""
    jars = local_stack("jars")
    wanted = jars.kafka_jars(version)
    is_needed = not os.environ.get("HARVEST_BOOTSTRAP_SERVERS") and not wanted.folder(state).is_dir()
    if not is_needed or local_stack("description").running(state) is not None:
        return
    said = time.monotonic()

    def tell(done: int, all_: int, size: int) -> None:
        nonlocal said
        is_shown, is_last = sys.stderr.isatty(), done == all_
        if time.monotonic() - said < (_BAR_SECONDS if is_shown else _LINE_SECONDS) and not is_last:
            return
        said = time.monotonic()
        megabytes = size / 1e6
        bar = "#" * (_BAR if is_last else int(_BAR * min(1, megabytes / _KAFKA_MEGABYTES)))
        line = f"{megabytes:.0f} MB, {done} of {all_} files"
        typer.echo(f"\r{bar:<{_BAR}} {line}" if is_shown else line, err=True, nl=not is_shown or is_last)

    typer.echo(f"downloading Kafka {version}, once: {_KAFKA_MEGABYTES} MB into {wanted.folder(state).parent}", err=True)
    jars.resolve(wanted, state, tell)


def _exports(description: "Description") -> str:
    """Return the lines by which a shell names these servers, with the password."""
    names = {"HARVEST_DSN": description.dsn, "HARVEST_BOOTSTRAP_SERVERS": description.bootstrap_servers}
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in names.items())


def confirm_fresh(*, fresh: bool, yes: bool) -> None:
    """Ask before the data of earlier runs is removed, if there is any."""
    found = sorted(each.name for each in state_folder().glob("*-*") if each.is_dir() and _DATA.match(each.name))
    if fresh and found:
        require_answer(yes=yes)
        ask(f"Remove the data of earlier runs in {state_folder()}: {', '.join(found)}?", yes=yes)


def hold(make: Callable[[], "Stack"], *, as_json: bool) -> None:
    """Start a stack in the foreground, print its servers, and stop the stack at Ctrl-C."""
    supervisor = local_stack("supervisor")
    supervisor.stop_on_signals()
    try:
        with make() as stack:
            show(stack.describe(), "up, until Ctrl-C", as_json=as_json)
            supervisor.hold(stack)
    except supervisor.Stopped:
        return


def local_stack(name: str) -> Any:
    """Import and return a module of the local stack. Raises StackError if the extra `local` is not installed."""
    try:
        return importlib.import_module(f"harvest_lib.local_stack.{name}")
    except ModuleNotFoundError as error:
        raise StackError(
            "the local stack is not installed",
            evidence=f"there is no module {error.name}",
            next_step=install_hint("local"),
        ) from error


def show(description: "Description", state: str, *, as_json: bool) -> None:
    """Print the servers of a stack and how to connect to them, without the password."""
    from harvest_lib.cli.tables import print_line, print_table, table_of

    text = description.to_json()
    if as_json:
        typer.echo(text)
        return
    content = json.loads(text)
    password = f"in {state_folder() / 'stack.json'}" if "********" in content["dsn"] else ""
    rows = []
    for server in description.servers:
        place = f"port {server.port}, " if server.port else ""
        rows.append((server.name, f"{server.version}, {place}pid {server.pid}"))
    rows += [("DSN", content["dsn"]), ("password", password), ("bootstrap", content["bootstrap_servers"])]
    rows += [(each.name.partition("-")[0].capitalize(), each.url) for each in description.servers]
    rows += description.notes.items()
    rows.append(("for a shell", 'eval "$(harvest up --exports)"'))
    print_line((state, "bold green"))
    print_table(table_of([row for row in rows if row[1]], boxed=False))
    if description.secure:
        typer.echo(local_stack("secure").settings_text(Path(description.secure)))


def _show_servers(description: "Description", *, as_json: bool) -> None:
    from harvest_lib.cli.tables import print_line, print_table, table_of

    servers = description.servers
    rows = [_server_row(each.name, each.version, each.pid, each.port or None, each.url) for each in servers]
    rows.append(_server_row("supervisor", "", description.pid, None, ""))
    if as_json:
        typer.echo(json_text(rows, indent=2))
        return
    last = ["url"] if any(row["url"] for row in rows) else []
    cells = []
    for row in rows:
        values = (row["server"], row["version"], row["pid"], row["port"] or "", row["state"])
        cells.append([*map(str, values), f"{row['memory_bytes'] // _MEBIBYTE} MB", *(row[name] for name in last)])
    print_table(table_of(cells, ["server", "version", "pid", "port", "state", "memory", *last], boxed=False))
    for title, note in description.notes.items():
        print_line(f"{title}: {note}")


def _server_row(name: str, version: str, pid: int, port: int | None, url: str) -> dict[str, Any]:
    psutil = importlib.import_module("psutil")
    try:
        process = psutil.Process(pid)
        status = process.status()
        state = {psutil.STATUS_ZOMBIE: "ended", psutil.STATUS_STOPPED: "frozen"}.get(status, "running")
        family = [process, *([] if name == "supervisor" else process.children(recursive=True))]
        memory = sum(_memory(member, psutil) for member in family)
    except psutil.NoSuchProcess:
        state, memory = "ended", 0
    row = {"server": name, "version": version, "pid": pid, "port": port, "state": state, "memory_bytes": memory}
    return {**row, "url": url}


def _memory(process: Any, psutil: Any) -> int:
    """Return the unshared memory of a process in bytes. Shared memory is left out, because Postgres' processes share
    most of their memory."""
    try:
        information = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(information.rss - getattr(information, "shared", 0))


def _print_lines(file: Path, text: bytes, *, prefix: bool) -> None:
    for line in text.decode(errors="replace").splitlines():
        sys.stdout.write(f"{file.stem} | {line}\n" if prefix else f"{line}\n")
    sys.stdout.flush()


def _last_lines(file: Path, count: int) -> tuple[bytes, int]:
    """Return the last `count` lines of a file, and the size of the file. Only the end of the file is read."""
    with file.open("rb") as log:
        position = end = log.seek(0, 2)
        text = b""
        while position and text.count(b"\n") <= count:
            step = min(65536, position)
            position -= step
            log.seek(position)
            text = log.read(step) + text
    return b"".join(text.splitlines(keepends=True)[-count:] if count else []), end
