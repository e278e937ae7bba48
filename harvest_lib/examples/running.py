"""Common parts of the examples: options, running until a signal, and writing sums."""

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, LiteralString

import typer

from harvest_lib.cli.log_output import configure_logging, log_is_read
from harvest_lib.cli.terminal import stop_on_signals
from harvest_lib.consume import Application, Consumer, PostgresStore, ShardLimits, Transaction, create_tables
from harvest_lib.consume.postgres_store import LOCK_DDL
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.interpreter import tune_collector
from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated
from harvest_lib.telemetry.service import observed

Dsn = Annotated[
    str, typer.Option(envvar="HARVEST_DSN", help="Postgres; by the variable, as others can read a command line.")
]
Servers = Annotated[str, typer.Option(envvar="HARVEST_BOOTSTRAP_SERVERS", help="Kafka's bootstrap.servers.")]
_SETTINGS = "A setting of librdkafka; as often as you like. Secrets by the variable, with spaces between them."
Settings = Annotated[
    list[str], typer.Option("--set", envvar="HARVEST_KAFKA_SETTINGS", metavar="NAME=VALUE", help=_SETTINGS)
]
Listen = Annotated[
    str | None,
    typer.Option(
        envvar="HARVEST_LISTEN",
        metavar="HOST:PORT",
        help="Serve /metrics, /livez, /readyz and /progress there. Without HOST on every IPv4 address.",
    ),
]
MinTxn = Annotated[float, typer.Option(help="Seconds before which no transaction ends.")]


def run(
    application: Application,
    *,
    name: str,
    topic: str,
    create: LiteralString,
    dsn: str,
    servers: str,
    settings: Iterable[str],
    min_txn: float,
    listen: str | None = None,
) -> None:
    """Consume until SIGTERM or Ctrl-C. The log is written to standard error as JSON. `create` is the statement that
    creates the application's table."""
    configure_logging("json", "info")
    tune_collector()
    stopping = threading.Event()
    stop_on_signals(stopping.set)
    try:
        create_tables(dsn)
        with connect(dsn) as connection, translated(), connection.transaction():
            connection.execute(LOCK_DDL)
            connection.execute(create)
        consumer = Consumer(
            application,
            name=name,
            topics=[topic],
            settings={"bootstrap.servers": servers, **dict(setting.split("=", 1) for setting in settings)},
            store=partial(PostgresStore, dsn),
            limits=ShardLimits(min_txn_duration_seconds=min_txn, max_txn_duration_seconds=max(1.0, min_txn)),
        )
        with observed(ConsumerTelemetry(consumer), listen):
            consumer.run(stopping)
    except HarvestError as error:
        if log_is_read():
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None


def write_sums(transaction: Transaction, statement: LiteralString, sums: Mapping[str, int]) -> Any:
    """Write sums by a single statement, which has two parameters: an array of keys and an array of sums. Return its
    cursor.

    The arrays are sorted by key, so that two shards with the same keys cannot deadlock.
    """
    keys = sorted(sums)
    return transaction.state.execute(statement, (keys, [sums[key] for key in keys]))
