"""`harvest try`: the first three records, from servers that it starts to a consumer and an audit.

It runs the commands that a user would type, and shows each before its output. They have a database and a topic of their
own, so that nothing else on these servers is touched.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from harvest_lib.cli.stack import local_stack, start_servers, state_folder
from harvest_lib.errors import StackError

if TYPE_CHECKING:
    from pathlib import Path

    from harvest_lib.local_stack.description import Description

DATABASE, TOPIC = "try", "try-orders"
_KEPT = ("HARVEST_HOME", "HARVEST_CACHE", "HARVEST_IMPL")
_WRITE = """\
import os, psycopg
from harvest_lib import OutboxRecord, append

with psycopg.connect(os.environ["HARVEST_DSN"], autocommit=True) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id bigserial, total int)")
    for total in (10, 20, 30):
        with connection.transaction():  # the row and the record are committed together, or neither is
            [order] = connection.execute("INSERT INTO orders (total) VALUES (%s) RETURNING id", [total]).fetchone()
            value = {"order": order, "total": total}
            append(connection, [OutboxRecord(topic="TOPIC", key=str(order), value=value)])
""".replace("TOPIC", TOPIC)
_READ = f"""\
import os, sys
from confluent_kafka import Consumer

consumer = Consumer({{"bootstrap.servers": os.environ["HARVEST_BOOTSTRAP_SERVERS"], "group.id": "try",
                     "auto.offset.reset": "earliest", "isolation.level": "read_committed"}})
consumer.subscribe(["{TOPIC}"])
for _ in range(3):
    message = consumer.poll(30) or sys.exit("no record within 30 s")
    print(f"key {{message.key().decode()}}: {{message.value().decode()}}")
consumer.close()
"""
_NEXT = """
What is left on this machine: Postgres and Kafka, until `harvest down`; their data in {state}.

To go on in this shell:
  eval "$(harvest up --exports)"       # HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS
  export HARVEST_LEADER_GROUP_ID=shop  # the name of the pool
  harvest init                         # the outbox table
  harvest topics create orders
  harvest run                          # until Ctrl-C; start a second one: it takes over if the first is killed
"""


def try_() -> None:
    """Start Postgres and Kafka here, commit three records, deliver, read and audit them.

    It takes a minute the first time, when 45 MB are downloaded, and 10 s later. It
    uses the servers of `harvest up`, with a database and a topic of its own.

    Example:

      harvest try
    """
    for name in ("HARVEST_DSN", "HARVEST_BOOTSTRAP_SERVERS"):
        if os.environ.get(name):
            raise StackError(
                "`harvest try` uses only servers that it starts itself",
                evidence=f"{name} names another server",
                next_step=f"unset {name}",
            )
    state = state_folder()
    description = _servers(state)
    others = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith("HARVEST_")}
    variables = others | {
        "HARVEST_DSN": local_stack("trial").own_database(description.dsn, DATABASE),
        "HARVEST_BOOTSTRAP_SERVERS": description.bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": DATABASE,
    }
    with tempfile.TemporaryDirectory(prefix="harvest-try-") as folder:  # without a harvest.yaml
        shell = _Shell(variables, folder)
        shell.command("init")
        shell.command("topics", "create", TOPIC)
        shell.program("An order and its record, in one transaction, three times", _WRITE)
        shell.command("run", "--drain", "--log-level", "warning")
        shell.program("What a consumer reads", _READ)
        shell.command("audit", "--topic", TOPIC)
    typer.echo(_NEXT.format(state=state))


def _servers(state: "Path") -> "Description":
    found: Description | None = local_stack("description").running(state)
    if found is None:
        _say("$ harvest up")
        found, _ = start_servers(state)
    if found.secure:
        raise StackError(
            "a secured stack is running",
            evidence="`harvest try` connects without TLS",
            next_step="`harvest down`, then try again",
        )
    places = ", ".join(f"{each.name} {each.version} on port {each.port}" for each in found.servers if each.port)
    typer.echo(f"running: {places}")
    return found


class _Shell:
    """Runs what a user would type, in a folder, with these variables alone."""

    def __init__(self, variables: Mapping[str, str], folder: str) -> None:
        self._variables = variables
        self._folder = folder

    def command(self, *arguments: str) -> None:
        """Show a command and run it. Raises StackError if it fails."""
        _say(f"$ harvest {' '.join(arguments)}")
        self._run("-m", "harvest_lib.cli", *arguments)

    def program(self, title: str, text: str) -> None:
        """Show a program in Python and run it. Raises StackError if it fails."""
        _say(f"# {title}")
        for line in text.splitlines():
            typer.echo(f"    {line}".rstrip())
        self._run("-c", text)

    def _run(self, *arguments: str) -> None:
        sys.stdout.flush()
        done = subprocess.run([sys.executable, *arguments], env=self._variables, cwd=self._folder, check=False)
        if done.returncode:
            raise StackError(
                "the last command did not succeed",
                evidence=f"exit code {done.returncode}; see above",
                next_step="`harvest logs` shows the servers' logs; `harvest down`, then try again",
            )


def _say(line: str) -> None:
    from harvest_lib.cli.tables import print_line

    print_line(("\n" + line, "bold"))
