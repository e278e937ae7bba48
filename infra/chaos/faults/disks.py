"""Faults of file systems: the file system of a server is full."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from harvest_lib.local_stack.process import tail
from infra.chaos.disk import Disk
from infra.chaos.faults.fault import Fault
from infra.chaos.namespaces import mounts_lacking, own_mounts
from infra.chaos.system import System
from infra.chaos.writing import Writing
from infra.waiting import until

_NO_ROOM = b"No space left on device"
_NOTICE_SECONDS = 60.0
_WAL_TOO = 0.5
_MOST_SEGMENTS = 100
"""More WAL segments than a server keeps for reuse."""

_disks: dict[Path, Disk] = {}


@contextmanager
def _on_disks(system: System) -> Iterator[None]:
    """Give every server its own file system."""
    folders = [system.postgres.folder, *map(system.kafka.data, range(1, len(system.kafka.brokers) + 1))]
    with own_mounts():
        for folder in folders:
            _add(folder)
        system.make_room = _add
        try:
            yield
        finally:
            _disks.clear()


def _add(folder: Path) -> None:
    _disks[folder] = Disk(folder)


@contextmanager
def _postgres_full(system: System, draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    """Fill the disk of Postgres, so that tables cannot grow. In half of the cases the WAL cannot grow either, and
    Postgres ends."""
    disk, log = _disks[system.postgres.folder], system.postgres.log
    seen = log.stat().st_size
    disk.fill()
    try:
        if draw.random() < _WAL_TOO:
            _want_segments(system)
        _await_noticed(log, seen)
        yield
    finally:
        disk.empty()
        _await_answers(system)


def _await_answers(system: System) -> None:
    """Wait until Postgres answers, and start it if it has ended."""
    postgres = system.postgres

    def answers() -> bool:
        if postgres.answers():
            return True
        if postgres.pid is None:
            postgres.start()
        return False

    until(
        answers,
        _NOTICE_SECONDS,
        "Postgres does not come back once there is room",
        evidence=lambda: tail(postgres.log, lines=2),
        next_step=f"read {postgres.log}",
    )


def _want_segments(system: System) -> None:
    """Make Postgres begin new WAL segments until it has no space for another. Then a statement fails or the server
    ends, which is the wanted fault."""
    try:
        with psycopg.connect(system.dsn, autocommit=True) as connection:
            for _ in range(_MOST_SEGMENTS):
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("SELECT pg_logical_emit_message(true, 'chaos', '')")
    except psycopg.Error:
        return


@contextmanager
def _broker_full(system: System, draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
    """Fill the disk of a broker. A broker ends if it can write to none of its folders."""
    number = draw.randint(1, len(system.kafka.brokers))
    disk, broker = _disks[system.kafka.data(number)], system.kafka.brokers[number - 1]
    seen = broker.log.stat().st_size
    disk.fill()
    try:
        _await_noticed(broker.log, seen)
        yield
    finally:
        disk.empty()
        broker.kill()  # it may be about to end
        system.kafka.start_broker(number)
        system.await_cluster()


def _await_noticed(log: Path, seen: int) -> None:
    """Wait until a server logs, after the first `seen` bytes of its log, that no space is left."""
    said = b""
    with log.open("rb") as file:
        file.seek(seen)

        def is_noticed() -> bool:
            nonlocal said
            said = said[-len(_NO_ROOM) :] + file.read()
            return _NO_ROOM in said

        until(
            is_noticed,
            _NOTICE_SECONDS,
            "no server has noticed that there is no room",
            evidence=lambda: tail(log, lines=2),
            next_step=f"read {log}",
        )


FAULTS: Mapping[str, Fault] = {
    name: Fault(promise=promise, inject=inject, seconds=(1, 5), needs=mounts_lacking, prepare=_on_disks)
    for name, promise, inject in (
        ("disk-full-postgres", "writers are refused, committed records stay, and it continues", _postgres_full),
        ("disk-full-kafka", "the other brokers continue, or all wait for it", _broker_full),
    )
}
