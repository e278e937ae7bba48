"""A system under load: writers write continuously, and a reader follows the topic."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.chaos.following import Following
from infra.chaos.history.events import FailoverLoss, Isolation, RecreatedTopic
from infra.chaos.history.writer import HistoryWriter
from infra.chaos.reading import TopicReader
from infra.chaos.system import PARTITIONS, SESSION_SECONDS, TOPIC, System, SystemMode, running
from infra.chaos.writing import Writers, Writing, make_tables
from infra.waiting import until

_KEYS = 300
_MOST_BEHIND = 6_000
"""Writers pause at this number of unread records, so that a machine too slow for the rate recovers in time."""
_RECOVER_SECONDS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad:
    """A system with its writers and its follower, the reader that follows the topic. Writers add to `answered` the
    events whose commit Postgres confirmed. `write` makes a recorded transaction, `read` makes a reader of the given
    name, and `faults` is the history of the faults."""

    system: System
    writers: Writers
    follower: TopicReader
    read: Callable[[str], TopicReader]
    write: Callable[[], Writing]
    answered: set[str]
    faults: HistoryWriter

    def note_what_happened(self) -> None:
        """Write the effects of faults on records into the history, and stop expecting the lost records."""
        for event in self.system.happened:
            self.faults.append(event)
            if isinstance(event, FailoverLoss | RecreatedTopic) or event.step == "drop":
                self.answered.difference_update(event.events)
        self.system.happened.clear()

    def recover(self) -> None:
        """Wait until all records that are committed now have been read, and further records were committed. Raises
        StackError if that takes too long."""
        seen, count = self.follower.seen, len(self.answered)
        due = self.answered - seen
        until(
            lambda: due <= seen and len(self.answered) > count,  # writers must continue, too
            _RECOVER_SECONDS,
            f"it was undone, and harvesting did not go on within {_RECOVER_SECONDS:.0f} s",
            evidence=lambda: (
                f"of {count} records committed by then {len(due - seen)} were not read; "
                f"{len(self.answered) - count} were committed since"
            ),
            next_step="read the logs of the harvesters, beside the history",
        )


@contextmanager
def under_load(
    folder: Path,
    parts: Path,
    mode: SystemMode,
    *,
    brokers: int,
    rate: float,
    threads: int,
    seed: int,
    prepare: Iterable[Callable[[System], AbstractContextManager[None]]],
    session_seconds: float = SESSION_SECONDS,
    listens: bool = False,
) -> Iterator[UnderLoad]:
    """Run a system under load. `rate` is in records per second, of all `threads` together. The history is in the
    subfolder `history` of `folder`."""
    isolation: Isolation = "committed" if mode.exactly_once else "uncommitted"
    history, locks_first = folder / "history", mode.source == "transaction_id"
    with ExitStack() as ending:
        writing, reading, faults = (
            ending.enter_context(HistoryWriter(history / f"{name}.jsonl")) for name in ("writers", "readers", "faults")
        )
        system = ending.enter_context(
            running(folder, parts, mode, brokers, prepare, session_seconds=session_seconds, listens=listens)
        )
        make_tables(system.dsn, _KEYS)
        answered: set[str] = set()

        def read(name: str) -> TopicReader:
            return TopicReader(
                system.kafka.bootstrap_servers, TOPIC, PARTITIONS, reading, name=name, isolation=isolation
            )

        follower = ending.enter_context(read("follower"))
        system.following = Following(reader=follower, answered=answered)
        writers = ending.enter_context(
            Writers(
                lambda: system.dsn,
                writing,
                TOPIC,
                keys=_KEYS,
                rate=rate,
                threads=threads,
                seed=seed,
                answered=answered,
                is_behind=lambda: len(answered) > len(follower.seen) + _MOST_BEHIND,
                locks_first=locks_first,
            )
        )
        yield UnderLoad(
            system=system,
            writers=writers,
            follower=follower,
            read=read,
            write=partial(Writing, writing, "slow-writer", TOPIC, answered, locks_first=locks_first),
            answered=answered,
            faults=faults,
        )
