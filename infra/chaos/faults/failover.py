"""Faults after which another Postgres is the primary: the primary is killed, and a streaming standby is promoted.

A synchronous standby has all committed rows. An asynchronous standby lacks the last rows: the missing records are
queried and noted before any harvester or writer reaches the standby. Harvesters that halt because of the failover are
started again, after the command that their error names was run.
"""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
from psycopg.sql import SQL

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import StackError
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.local_stack.process import tail
from infra.chaos.commands import harvest
from infra.chaos.faults.fault import Fault, Injection
from infra.chaos.history.events import FailoverLoss, StoredCheckpoint, Write
from infra.chaos.history.reader import read_history
from infra.chaos.system import System, SystemMode
from infra.chaos.writing import Writing
from infra.waiting import until

_NAME = "chaos_standby"
_FOLLOWS = "SELECT sync_state FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
_TIMELINE = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
_GOES_ON = "SELECT checkpoint -> 'position' -> 'server' ->> 'timeline' FROM outbox_subscriptions"
_HALTED = "another server was promoted"
_MARKED = SQL("SELECT kafka_value FROM outbox UNION ALL SELECT record ->> 'kafka_value' FROM outbox_parked")
"""Undelivered records. The table has no others, because delivered records are deleted."""
_PASSED = {
    "snapshot": SQL(
        "pg_visible_in_snapshot(o.transaction_id, (position ->> 'prev')::pg_snapshot)"
        " OR o.id <= (position ->> 'after')::bigint"
        " AND pg_visible_in_snapshot(o.transaction_id, (position ->> 'cur')::pg_snapshot)"
    ),
    "transaction_id": SQL(
        "(o.transaction_id, o.id) <= ((position ->> 'transaction_id')::xid8, (position ->> 'id')::bigint)"
    ),
}
_READ = SQL("""
SELECT kafka_value FROM outbox AS o
LEFT JOIN (SELECT checkpoint -> 'position' AS position FROM outbox_subscriptions) AS reached ON true
WHERE NOT coalesce({passed}, false) OR coalesce(position -> 'deferred' @> to_jsonb(o.id), false)
   OR EXISTS (SELECT FROM outbox_parked_ids AS parked WHERE parked.id = o.id)
""")
_CHECKPOINTS = """
SELECT subscription, shard, generation, (checkpoint ->> 'number')::bigint FROM outbox_subscriptions
WHERE checkpoint IS NOT NULL
"""
_FOLLOWING_SECONDS = (1.0, 3.0)
_BEHIND_SECONDS = (0.3, 1.5)
_READY_SECONDS = 60.0


def _failover(state: str) -> Injection:
    @contextmanager
    def inject(system: System, draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        old, new = system.postgres, _standby(system, state)
        time.sleep(draw.uniform(*_FOLLOWING_SECONDS))
        if state == "async":
            _fall_behind(old)
            time.sleep(draw.uniform(*_BEHIND_SECONDS))
        old.kill()
        since = boot_seconds()
        try:
            yield
        finally:
            if state == "async":
                _promote_lacking(system, new, since)
            else:
                new.promote()
            system.move_to(new)
            old.remove()
            if state == "async" and system.mode.source != "mark":
                _bring_back(system)

    return inject


def _standby(system: System, state: str) -> PostgresServer:
    """Return a new standby that streams from the primary. With the state `sync`, each commit waits for the standby."""
    new = PostgresServer(system.folder / f"standby-{len(system.servers)}")
    system.servers.append(new)
    system.make_room(new.folder)
    new.copy(system.postgres, _NAME)
    new.start()
    with psycopg.connect(system.dsn, autocommit=True) as connection:
        if state == "sync":
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{_NAME}'".encode())
            connection.execute("SELECT pg_reload_conf()")
        try:
            _await(lambda: connection.execute(_FOLLOWS, (_NAME,)).fetchone() == (state,), "the standby does not follow")
        except StackError:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")  # else every commit would wait forever
            connection.execute("SELECT pg_reload_conf()")
            raise
    return new


def _fall_behind(primary: PostgresServer) -> None:
    """Freeze the processes that send the WAL to the standby. They stay frozen until the server is killed."""
    senders = [
        process
        for process in psutil.Process(primary.pid).children()
        if any("walsender" in word for word in process.cmdline())
    ]
    if not senders:
        raise StackError("no process sends the log to the standby", next_step="read the logs of Postgres")
    for process in senders:
        process.send_signal(signal.SIGSTOP)


def _promote_lacking(system: System, new: PostgresServer, since: float) -> None:
    """Promote a standby that lacks the last transactions, and record its missing events, its backlog and its
    checkpoints. The primary was killed at `since`."""
    at, asked = boot_seconds(), _asked_for(system)
    new.promote()
    with psycopg.connect(new.dsn, autocommit=True) as connection:
        there = {str(event) for (event,) in connection.execute("SELECT event FROM chaos_written")}
        backlog = backlog_of(connection, system.mode)
        row = connection.execute("SELECT to_regclass('outbox_subscriptions') IS NOT NULL").fetchone()
        checkpoints = connection.execute(_CHECKPOINTS).fetchall() if row == (True,) else []
    system.happened.append(
        FailoverLoss(
            type="ok",
            process="postgres",
            time=at,
            events=tuple(sorted(asked - there)),
            since=since,
            backlog=tuple(sorted(backlog)),
            checkpoints=tuple(StoredCheckpoint(*each) for each in checkpoints),
        )
    )


def backlog_of(connection: psycopg.Connection[Any], mode: SystemMode) -> set[str]:
    """Return the events that are undelivered according to the data of this server, parked events included."""
    find = _MARKED if mode.source == "mark" else _READ.format(passed=_PASSED[mode.source])
    return {json.loads(value)["event"] for (value,) in connection.execute(find)}


def _asked_for(system: System) -> set[str]:
    """Return the events whose commit a writer has requested, without those whose write certainly failed."""
    asked: set[str] = set()
    for event in read_history([system.history / "writers.jsonl"], on_bad=lambda _line: None):
        if isinstance(event, Write):
            events = {record.event for record in event.records}
            asked = asked - events if event.type == "fail" else asked | events
    return asked


def _bring_back(system: System) -> None:
    """Run the command that the error of the halted harvesters names, and restart these harvesters, until a harvester
    stores a checkpoint on the new primary."""
    with psycopg.connect(system.dsn, autocommit=True) as connection:
        row = connection.execute(_TIMELINE).fetchone()
        is_rewound = system.mode.delivery != "transactional"  # only a checkpoint in Kafka needs a rewind

        def goes_on() -> bool:
            nonlocal is_rewound
            halted = [each for each in system.members if each.harvester and _HALTED in tail(each.harvester.process.log)]
            for member in halted:
                if member.is_up:  # a leader from before the rewind, about to end
                    continue
                if not is_rewound:
                    harvest("subscriptions", "rewind", "default", "--to", "mirror", "-f", system.operator_config())
                    is_rewound = True
                system.start_member(member)
            return not halted and connection.execute(_GOES_ON).fetchone() == row

        _await(goes_on, "no harvester goes on from the state of the new primary")


def _await(condition: Callable[[], bool], otherwise: str) -> None:
    next_step = "read the logs of Postgres and the harvesters, beside the history"
    until(condition, _READY_SECONDS, otherwise, next_step=next_step)


FAULTS: Mapping[str, Fault] = {
    "failover-sync": Fault(
        promise="nothing is lost, and no manual step is needed", inject=_failover("sync"), seconds=(1, 4)
    ),
    "failover-async": Fault(
        promise="the new primary's records are delivered; a harvester that knew more halts with an error",
        inject=_failover("async"),
        seconds=(1, 4),
        fits=lambda mode: mode.delivery != "sequenced",  # records repeat, because the standby's checkpoint is older
    ),
}
