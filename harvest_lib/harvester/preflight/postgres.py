"""Preflight checks of Postgres: connection, clock, outbox table with index and sequence, side tables, grants."""

import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import DatabaseAccessDenied, DatabaseError, OutboxTableError
from harvest_lib.grants import harvester_needs, require_grants
from harvest_lib.grants.dagster import require_dagster
from harvest_lib.harvester.assembly.choices import read_choices, resolved
from harvest_lib.harvester.assembly.factory import make_selection
from harvest_lib.harvester.assembly.pools import ELECTION_UNKNOWN, read_pool, refuse_group
from harvest_lib.harvester.assembly.preconditions import Check, Preconditions, filtered_topics
from harvest_lib.harvester.housekeeping.table_warnings import ids_end, rows_unstamped
from harvest_lib.harvester.preflight.report import Report
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.id_sequences import IdsEnd
from harvest_lib.outbox.native_table import index_statement
from harvest_lib.postgres.database import connect, in_statement, require_session, server_time
from harvest_lib.postgres.translation import translated

_MOST_TOPICS = 100
_CLOCK_SECONDS = 1.0
"""Largest accepted difference between the clocks of this machine and of Postgres."""

_RECOVERS = "SELECT pg_is_in_recovery()"

_INDEXES = """
SELECT array(SELECT attname::text FROM unnest(indkey::int2[]) WITH ORDINALITY AS k (number, place)
  JOIN pg_attribute ON attrelid = indrelid AND attnum = number ORDER BY place), indisvalid
FROM pg_index WHERE indrelid = to_regclass(%s)
"""

# The statement reads only the first and the last records, by the index, since the table may be of any size.
_TOPICS = """
SELECT DISTINCT topic FROM (
  (SELECT {topic} AS topic FROM {table} ORDER BY {id} LIMIT 10000)
  UNION ALL
  (SELECT {topic} FROM {table} ORDER BY {id} DESC LIMIT 10000)
) AS named LIMIT %(most)s
"""


@dataclass(slots=True)
class Found:
    """The results that the checks of Kafka need from Postgres: the topics of the records and of the subscription, and
    the checks that need both servers."""

    topics: set[str] = field(default_factory=set)
    checks: list[Check] = field(default_factory=list)
    config: HarvestConfig | None = None
    """The configuration with `auto` resolved; None if the table was not found."""


def check_postgres(config: HarvestConfig, report: Report, *, in_dagster: bool = False) -> Found:
    """Report problems of Postgres, and return the results that the checks of Kafka need. `in_dagster`: check too what
    the role needs in Dagster."""
    conninfo = config.data_source.conninfo()
    with ExitStack() as opened:
        connections: list[psycopg.Connection[Any]] = []
        if not report.run("postgres", "Postgres answers", lambda: connections.append(connect(conninfo))):
            return Found()
        connection = opened.enter_context(connections[0])
        report.passed.append(("postgres", f"connection to {connection.info.dbname} as {connection.info.user}"))
        report.run("postgres", "a session of its own", lambda: require_session(conninfo))
        _check_clock(connection, report)
        if in_dagster:
            table = OutboxTable.parse(config.outbox_table)
            report.run("postgres", "tables of Dagster's runs", lambda: require_dagster(connection, table))
        return _Table(config, connection, report).check()


def _check_clock(connection: psycopg.Connection[Any], report: Report) -> None:
    with report.step("clock", "this machine's clock is that of Postgres"), translated():
        before = time.time()
        server = server_time(connection)
        after = time.time()
        ahead = (before + after) / 2 - server
        if abs(ahead) > _CLOCK_SECONDS + (after - before) / 2:
            report.warn(
                "clock",
                f"the clock of this machine is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} Postgres'",
                evidence="timestamps of messages and ages of the backlog will be wrong by as much",
                next_step="synchronize both machines by NTP (`timedatectl status`, `chronyc tracking`)",
            )


class _Table:
    """The checks of an outbox, ordered so that each check may rely on the earlier checks."""

    def __init__(self, config: HarvestConfig, connection: psycopg.Connection[Any], report: Report) -> None:
        self._config = config
        self._connection = connection
        self._report = report
        self._table = OutboxTable.parse(config.outbox_table)
        self._elects_otherwise = False  # True if `auto` chose the lock in Postgres, which goharvest does not see

    def check(self) -> Found:
        run, connection, table, found = self._report.run, self._connection, self._table, Found()
        if not run("postgres", "a server that takes changes", self._require_primary):
            return found
        if not run("postgres", f"the table {table}", self._find):
            return found
        config = found.config = self._config
        if self._elects_otherwise:
            found.checks.append(("no process elects through Kafka", self._refuse_group))
        preconditions = Preconditions(config, table, pool=partial(read_pool, config))
        held = {what: run("postgres", what, step) for what, step in preconditions.of_table(connection)}
        if held["columns"]:
            if config.columns is None:
                run("postgres", "index", self._index)
            if config.mode.reads_segments:
                unstamped = partial(rows_unstamped, connection, config, table)
                run("postgres", "transaction ids by a trigger", lambda: self._warn_of(unstamped()))
            run("postgres", "ids that last", lambda: self._warn_of(ids_end(connection, config, table)))
        beside = run("postgres", "tables beside it", lambda: preconditions.check_tables_beside(connection))
        granted = run("postgres", "grants", lambda: require_grants(connection, harvester_needs(table, config.mode)))
        if all(held.values()) and beside and granted:  # otherwise the next checks would fail for the same reason
            for what, step in preconditions.of_contents(connection):
                run("postgres", what, step)
            found.checks += preconditions.with_kafka(connection)
        run("postgres", "topics of the records", lambda: found.topics.update(self._topics()))
        return found

    def _refuse_group(self) -> None:
        if reason := refuse_group(self._config):
            self._report.warn(
                "kafka",
                "Kafka does not report whether processes of this pool elect through it",
                evidence=f"the consumer group {self._config.leader_group_id!r}: {reason}",
                next_step=ELECTION_UNKNOWN,
            )

    def _require_primary(self) -> None:
        with translated():
            row = self._connection.execute(_RECOVERS).fetchone()
        if row == (True,):
            raise DatabaseError(
                "this server is a standby, which takes no changes",
                evidence=f"{self._connection.info.host} is in recovery",
                next_step="name the primary in `dataSource`, or all servers with target_session_attrs=read-write",
            )

    def _find(self) -> None:
        self._table.kind(self._connection)  # raises if the table is missing
        choices = read_choices(self._config, self._connection, self._table)
        self._elects_otherwise = (self._config.leadership, choices.leadership) == ("auto", "postgres")
        self._config = resolved(self._config, choices, self._table)
        self._report.passed.append(("configuration", str(choices)))

    def _index(self) -> None:
        """Warn if the table lacks the index that polls need, so that each poll would read the whole table."""
        wanted = ["transaction_id", "id"] if self._config.mode.reads_segments else ["id"]
        with translated():
            rows = self._connection.execute(_INDEXES, (str(self._table),)).fetchall()
        fit = [is_valid for columns, is_valid in rows if columns[: len(wanted)] == wanted]
        if any(fit):
            return
        by = ", ".join(wanted)
        statement = (
            f"{index_statement(self._table).as_string(None)} (as the owner; it reads the whole table, and writers wait)"
            if self._config.mode.reads_segments
            else f"CREATE UNIQUE INDEX CONCURRENTLY ON {self._table} (id)"
        )
        self._report.warn(
            "postgres",
            f"the table {self._table} has no index by ({by}), so that each poll reads all of it",
            evidence="the index is not valid: not all segments have it" if fit else "no index begins with them",
            next_step=statement,
        )

    def _warn_of(self, found: IdsEnd | OutboxTableError | None) -> None:
        if found:
            self._report.warn("postgres", found.cause, evidence=found.evidence, next_step=found.next_step)

    def _topics(self) -> Collection[str]:
        """Return the topics of records and of the subscription. Tables that this role may not read are left out; an
        earlier check has reported them."""
        found: set[str] = set()
        selection = make_selection(self._config, self._table)
        names = {"topic": selection.columns["kafka_topic"], "id": selection.columns["id"], "table": selection.table}
        statement = sql.SQL(_TOPICS).format(**{name: in_statement(each) for name, each in names.items()})
        with suppress(DatabaseAccessDenied, OutboxTableError), translated():
            rows = self._connection.execute(statement, {"most": _MOST_TOPICS}).fetchall()
            found.update(row[0] for row in rows)
            keeps = self._config.mode.keeps_checkpoints
            if keeps and (subscriptions := self._table.beside(self._connection, "subscriptions")) is not None:
                found |= filtered_topics(self._connection, subscriptions, self._config.subscription)
        return found
