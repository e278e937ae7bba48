"""`harvest up | down | ps | logs`: the local stack from the command line.

Exit codes: 0 done, 7 the stack could not be brought up or down (the message says why), and 1 from `ps` when no stack
is up.
"""

import json
import time
from typing import Annotated

import typer

from harvest_lib.errors import StackError

app = typer.Typer(rich_markup_mode="rich")

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
        bool, typer.Option("--secure", help="Use TLS, users and ACLs, and show how clients connect.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the data of earlier runs first.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, and stop the stack at Ctrl-C.")
    ] = False,
    as_json: _JsonOption = False,
) -> None:
    """Start Postgres and Kafka on this machine, and return once they answer. With --all, start Dagster and Airflow too.

    Data is kept between runs in `.harvest` (HARVEST_HOME names another folder).
    HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS name existing servers to use
    instead. With --secure, clients need TLS and explicit grants. A secure stack
    has its own data; keys and passwords are in the folder `secure` next to it.
    Exits with 7 if the stack does not start.
    """
    from harvest_lib.cli.actions.stack import local_stack, show_description, state_folder

    supervisor = local_stack("supervisor")
    state = state_folder()
    served = definitions if all_ else ""
    if foreground:
        supervisor.stop_on_signals()
        try:
            with local_stack("stack").Stack(
                state, postgres, kafka, brokers, fresh=fresh, definitions=served, secure=secure
            ) as stack:
                show_description(stack.describe(), "up, until Ctrl-C", as_json=as_json)
                supervisor.hold(stack)
        except supervisor.Stopped:
            return
    description, already = supervisor.up(
        state, postgres=postgres, kafka=kafka, brokers=brokers, fresh=fresh, definitions=served, secure=secure
    )
    show_description(description, "already running" if already else "up", as_json=as_json)


@app.command(epilog="Example: harvest down")
def down(*, as_json: _JsonOption = False) -> None:
    """Stop the stack and wait until it has stopped. The data stays. Exits with 7 if it does not stop."""
    from harvest_lib.cli.actions.stack import local_stack, state_folder

    ended = local_stack("supervisor").down(state_folder())
    if as_json:
        typer.echo(json.dumps({"ended": ended}))
    else:
        typer.echo("down" if ended else "nothing was running")


@app.command(epilog="Example: harvest ps · harvest ps --json")
def ps(*, as_json: _JsonOption = False) -> None:
    """Show the servers of the stack. Exits with 1 if no stack is running."""
    from rich.console import Console
    from rich.table import Table

    from harvest_lib.cli.actions.stack import MEBIBYTE, local_stack, server_row, state_folder
    from harvest_lib.cli.actions.tables import print_table

    description = local_stack("description").running(state_folder())
    if description is None:
        typer.echo("[]" if as_json else "nothing is running; start it with `harvest up`")
        raise typer.Exit(1)
    rows = [server_row(server.name, server.version, server.pid, server.port or None) for server in description.servers]
    rows.append(server_row("supervisor", "", description.pid, None))
    addresses = {server.name: server.url for server in description.servers if server.url}
    rows = [{**row, "url": addresses.get(row["server"], "")} for row in rows]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    columns = ["server", "version", "pid", "port", "state", "memory", *(["url"] if addresses else [])]
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        memory = f"{row['memory_bytes'] // MEBIBYTE} MB"
        cells = [row["server"], row["version"], str(row["pid"]), str(row["port"] or ""), row["state"], memory]
        table.add_row(*cells, *([row["url"]] if addresses else []))
    print_table(table)
    if description.airflow_login:
        Console(soft_wrap=True).print(f"Airflow's login: {description.airflow_login}")


@app.command(epilog="Example: harvest logs · harvest logs kafka -n 100 · harvest logs postgres -f")
def logs(
    server: Annotated[str, typer.Argument(help="postgres, kafka, dagster, airflow or supervisor; default: all.")] = "",
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new lines as they are logged.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Number of lines from the end of each log.")] = 20,
) -> None:
    """Show the logs of the servers, including stopped ones. Exits with 7 if there is no such log."""
    from harvest_lib.cli.actions.stack import last_lines, print_lines, state_folder

    files = sorted((state_folder() / "logs").glob(f"{server}*.log"))
    if not files:
        raise StackError(
            f"there is no log of {server or 'the stack'}",
            next_step="name postgres, kafka, dagster, airflow or supervisor, after `harvest up` has run once",
        )
    prefix = len(files) > 1
    ends = {}
    for file in files:
        text, ends[file] = last_lines(file, lines)
        print_lines(file, text, prefix=prefix)
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
            print_lines(file, text, prefix=prefix)
