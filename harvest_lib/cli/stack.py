"""`harvest up | down | ps | logs`: the local stack from the command line.

Exit codes: 0 done, 7 the stack could not be started or stopped (the message says why), and 1 from `ps` when no stack
is up.
"""

import time
from pathlib import Path
from typing import Annotated

import typer

from harvest_lib.cli import actions
from harvest_lib.cli.options import Json
from harvest_lib.cli.terminal import json_text
from harvest_lib.errors import StackError

app = typer.Typer(rich_markup_mode="rich")

_FOLLOW_SECONDS = 0.2


@app.command(
    epilog="Example: harvest up · harvest up --all · harvest up --all --dags dags · harvest up --all --observe"
    " · harvest up --secure · harvest up --brokers 3 --fresh"
)
def up(
    *,
    brokers: Annotated[int, typer.Option(help="Kafka brokers: 1 or 3.")] = 1,
    postgres: Annotated[str, typer.Option(help="Version of Postgres: 18 or 16.")] = "18",
    kafka: Annotated[str, typer.Option(help="Version of Kafka: 4.3.1 or 3.9.1.")] = "4.3.1",
    all_: Annotated[bool, typer.Option("--all", help="Start Dagster and Airflow as well.")] = False,
    definitions: Annotated[
        str, typer.Option(help="With --all: the module whose definitions Dagster serves.")
    ] = "dagster_harvest.definitions",
    dags: Annotated[
        Path | None,
        typer.Option(help="With --all: the folder of DAGs that Airflow runs, instead of ours.", metavar="FOLDER"),
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="With --all: start a Prometheus with our alert rules as well.")
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Use TLS, users and ACLs, and show how clients connect.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the data of earlier runs first.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, and stop the stack at Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start Postgres and Kafka on this machine, and return once they answer. With --all, start Dagster and Airflow too.

    Data is kept between runs in `.harvest` (HARVEST_HOME names another folder).
    HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS name existing servers to use
    instead. Airflow runs our DAGs unless --dags is given, at each `harvest up`.
    With --observe, Prometheus scrapes the run that harvests in Dagster.
    With --secure, clients need TLS and explicit grants. A secure stack
    has its own data; keys and passwords are in the folder `secure` next to it.
    Exits with 7 if the stack does not start.
    """
    supervisor = actions.stack.local_stack("supervisor")
    state = actions.stack.state_folder()
    served = definitions if all_ else ""
    if dags is not None and not all_:
        raise typer.BadParameter("Airflow runs with --all only: add it, or leave --dags out")
    if observe and not all_:
        raise typer.BadParameter("Prometheus runs with --all only: add it, or leave --observe out")
    folder = str(actions.stack.local_stack("airflow").checked_dags(dags)) if dags is not None else ""
    if foreground:
        supervisor.stop_on_signals()
        try:
            with actions.stack.local_stack("stack").Stack(
                state,
                postgres,
                kafka,
                brokers,
                fresh=fresh,
                definitions=served,
                dags=folder,
                observe=observe,
                secure=secure,
            ) as stack:
                actions.stack.show_description(stack.describe(), "up, until Ctrl-C", as_json=as_json)
                supervisor.hold(stack)
        except supervisor.Stopped:
            return
    description, already = supervisor.up(
        state,
        postgres=postgres,
        kafka=kafka,
        brokers=brokers,
        fresh=fresh,
        definitions=served,
        dags=folder,
        observe=observe,
        secure=secure,
    )
    actions.stack.show_description(description, "already running" if already else "up", as_json=as_json)


@app.command(epilog="Example: harvest down")
def down(*, as_json: Json = False) -> None:
    """Stop the stack and wait until it has stopped. The data stays. Exits with 7 if it does not stop."""
    ended = actions.stack.local_stack("supervisor").down(actions.stack.state_folder())
    if as_json:
        typer.echo(json_text({"ended": ended}))
    else:
        typer.echo("down" if ended else "nothing was running")


@app.command(epilog="Example: harvest ps · harvest ps --json")
def ps(*, as_json: Json = False) -> None:
    """Show the servers of the stack. Exits with 1 if no stack is running."""
    description = actions.stack.local_stack("description").running(actions.stack.state_folder())
    if description is None:
        typer.echo("[]" if as_json else "nothing is running; start it with `harvest up`")
        raise typer.Exit(1)
    actions.stack.show_servers(description, as_json=as_json)


@app.command(epilog="Example: harvest logs · harvest logs kafka -n 100 · harvest logs postgres -f")
def logs(
    server: Annotated[
        str, typer.Argument(help="postgres, kafka, dagster, airflow, prometheus or supervisor; default: all.")
    ] = "",
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new lines as they are logged.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Number of lines from the end of each log.")] = 20,
) -> None:
    """Show the logs of the servers, including stopped ones. Exits with 7 if there is no such log."""
    files = sorted((actions.stack.state_folder() / "logs").glob(f"{server}*.log"))
    if not files:
        raise StackError(
            f"there is no log of {server or 'the stack'}",
            next_step="name a server that `harvest ps` shows, or supervisor, after `harvest up` has run once",
        )
    prefix = len(files) > 1
    ends = {}
    for file in files:
        text, ends[file] = actions.stack.last_lines(file, lines)
        actions.stack.print_lines(file, text, prefix=prefix)
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
            actions.stack.print_lines(file, text, prefix=prefix)
