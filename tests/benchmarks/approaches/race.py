"""All readers at once on the same workload, each on a thread and a connection of its own."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import psycopg

from tests.benchmarks.approaches import tables
from tests.benchmarks.approaches.judge import Poll, Record, Verdict, judge
from tests.benchmarks.approaches.reader import Reader
from tests.benchmarks.approaches.writers import Writers

_POLL_SECONDS = 0.005
_QUIET_SECONDS = 1.5
"""Longer than any reader's patience: one that has found nothing for so long will not find the rest."""
_LONGEST_DRAIN_SECONDS = 20.0


class Follower:
    """A reader and what it has read so far."""

    def __init__(self, reader: Reader) -> None:
        self.polls: list[Poll] = []
        self.records: set[Record] = set()
        self._reader = reader

    def run(self, dsn: str, stop: Event) -> None:
        """Poll until stopped, at once after a poll that found something."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                began = time.monotonic()
                records = [(row[1], row[2]) for row in self._reader.poll(connection)]
                self.polls.append(Poll(began, time.monotonic(), records))
                self.records.update(records)
                if not records:
                    stop.wait(_POLL_SECONDS)


def race(dsn: str, readers: Mapping[str, Reader], *, seconds: float) -> tuple[int, dict[str, Verdict]]:
    """Write for so long, let the readers come to their end, and return the number of commits and each one's verdict."""
    tables.create(dsn)
    followers = {name: Follower(reader) for name, reader in readers.items()}
    with _following(dsn, followers) as failed:
        with Writers(dsn) as writers:
            failed.wait(seconds)
        _wait_until_quiet(followers, writers.committed, failed)
    return len(writers.committed), {
        name: judge(writers.committed, follower.polls) for name, follower in followers.items()
    }


@contextmanager
def _following(dsn: str, followers: Mapping[str, Follower]) -> Iterator[Event]:
    """Run the followers meanwhile; the event is set as soon as one fails, and its error raised at the end."""
    stop, failed = Event(), Event()
    with ThreadPoolExecutor(len(followers), thread_name_prefix="reader") as pool:
        futures = [pool.submit(follower.run, dsn, stop) for follower in followers.values()]
        for future in futures:
            future.add_done_callback(lambda done: failed.set() if done.exception() else None)
        try:
            yield failed
        finally:
            stop.set()
    for future in futures:
        future.result()


def _wait_until_quiet(followers: Mapping[str, Follower], committed: Mapping[Record, float], failed: Event) -> None:
    """Wait until each reader has everything, or has found nothing new for a while."""
    deadline = time.monotonic() + _LONGEST_DRAIN_SECONDS
    counts, quiet_since = [0], time.monotonic()
    while time.monotonic() < min(deadline, quiet_since + _QUIET_SECONDS) and not failed.wait(0.05):
        now = [len(follower.records) for follower in followers.values()]
        if all(count == len(committed) for count in now):
            return
        if now != counts:
            counts, quiet_since = now, time.monotonic()
