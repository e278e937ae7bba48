"""Run tiers of the tests in parallel, then ask once more, alone, what failed: `python -m tests.run quick gate`.

A test that fails twice fails the run. One that passes the second time is named as flaky, also in `flaky.json`; more
than three of them fail the run. Tests that did not run, as a worker died, are run too. A session in which no test ends
any more is ended.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support.hypothesis_profiles import VARIABLE
from support.record import Record
from support.session_folder import empty_left_folders
from support.tiers import TIERS, names_of

from harvest_lib.errors import HarvestError
from harvest_lib.local_stack.jars import POSTGRES_JDBC, kafka_jars, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.kafka import VERSIONS
from harvest_lib.local_stack.postgres import VERSIONS as POSTGRES_VERSIONS
from harvest_lib.local_stack.postgres_tls import bring_binaries
from harvest_lib.local_stack.process import through_child
from harvest_lib.local_stack.state import default_state, locked, write_private

TESTS = ["tests"]
MOST_FLAKY = 3
MOST_ASKED_AGAIN = 20
COLLECTION_SECONDS = 280
"""Hundreds of modules are compiled by one worker, then imported by each, before the first test."""
NOT_OURS = ("PYTEST_ADDOPTS", "TEST_LEAST_PRIVILEGE", "HARVEST_IMPL")
"""Variables that would select other tests, or run them otherwise."""
BESIDE_SECONDS = 280
"""From the end of the tests, beside which it began."""
WORKER_RESTARTS = 8
"""With `worksteal` a worker that dies costs the test that it ran; by file or group the session could wait for ever."""
NEXT = {
    "quick": "`make test-gate` before a change is proposed; CONTRIBUTING.md says when to run which",
    "gate": "`make test-all` before a release, and where CONTRIBUTING.md asks for it",
    "full": "`make test-long` and `make test-e2e` before a release",
}


@dataclass(frozen=True)
class Limits:
    """Limits in seconds, each above the one before: of one test, with its fixtures, and between the ends of two.

    A test or a fixture that hangs has ended twice within five minutes; the second time it is alone and has less.
    """

    test: int = 140
    fixtures: int = 165
    still: int = 175

    @classmethod
    def of(cls, tiers: Sequence[str]) -> "tuple[Limits, Limits]":
        """Return the limits of these tiers, and those of asking once more. In `full` there are tests of a quarter of
        an hour."""
        if "full" in tiers:
            return cls(240, 1200, 1300), cls(240, 1200, 1300)
        return cls(), cls(100, 115, 125)

    def arguments(self) -> list[str]:
        """Return pytest's options."""
        return ["--timeout", str(self.test), "-o", f"faulthandler_timeout={self.fixtures}"]


@dataclass(frozen=True)
class Session:
    """One pytest session: its exit code, its record, and whether it was ended as nothing moved."""

    code: int
    record: Record
    seconds: float
    stuck: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("tiers", nargs="+", choices=TIERS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limits", nargs=3, type=int, help="seconds: of a test, with its fixtures, between two")
    parser.add_argument("--beside", default="", metavar="COMMAND", help="run it meanwhile; it has to succeed too")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders or files instead of all")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the session ends with us
    if "full" not in given.tiers:  # the tiers that every change has to pass draw the same examples
        os.environ.pop(VARIABLE, None)
    limits = (Limits(*given.limits),) * 2 if given.limits else Limits.of(given.tiers)
    try:
        return _run(given, limits)
    except KeyboardInterrupt:
        print("\ninterrupted")
        return 130
    except (OSError, HarvestError) as error:  # a full disk, no network, no Java
        print(f"\nfailed: the run ({error})\nnext: {getattr(error, 'next_step', '') or 'mend that, then run it again'}")
        return 1


def _run(given: argparse.Namespace, limits: tuple[Limits, Limits]) -> int:
    with ExitStack() as held:
        # A second run at the same time has a folder of its own.
        folders = (default_state() / "test" / f"run-{number}" for number in count(1))
        folder = next(each for each in folders if held.enter_context(locked(each / "lock", wait=False)))
        parallel = ["-n", str(given.workers), "--dist", "worksteal", "--max-worker-restart", str(WORKER_RESTARTS)]
        if given.tests == TESTS:
            _bring(given.tiers)
            empty_left_folders(default_state())
        other = held.enter_context(_beside(given.beside, folder / "beside.log"))
        first, second = run(given.tiers, folder, [*parallel, *given.tests], limits)
        others = {given.beside: reason} if (reason := other()) else {}
        if given.tests == TESTS and not first.record.uncollected:
            others |= _not_collected(given.tiers, first.record)
        return _verdict(given.tiers, first, second, others)


def _not_collected(tiers: Sequence[str], record: Record) -> dict[str, str]:
    """Return tests that stand in a module and that pytest did not find: a mark, an option or a plugin left them out."""
    found = {each.partition("[")[0] for each in record.collected}
    wanted = {f"tests/{each}" for each in names_of(Path(__file__).parent, tiers)}
    return dict.fromkeys(sorted(wanted - found), "it was not collected") if found else {}


def _bring(tiers: Sequence[str]) -> None:
    """Bring what servers start from. A download in a fixture would count as a test that hangs. Raises StackError."""
    parts = default_state()
    find_java(parts)
    print("bringing jars and servers that are not there yet", flush=True)
    if {*tiers} & {"gate", "full"}:
        bring_binaries(next(iter(POSTGRES_VERSIONS)), parts)
    for jars in (kafka_jars(VERSIONS[0]), POSTGRES_JDBC, spark_kafka_jars()):
        resolve(jars, parts)


@contextmanager
def _beside(command: str, log: Path) -> Iterator[Callable[[], str]]:
    """Run a command of the shell meanwhile; yields a function that waits for it, shows its output, and returns the
    reason why it failed, if it did."""
    if not command:
        yield lambda: ""
        return
    with log.open("w") as file:
        process = subprocess.Popen(
            through_child(["/bin/sh", "-c", command]), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )

    def end() -> str:
        with suppress(subprocess.TimeoutExpired):
            process.wait(BESIDE_SECONDS)
        print(f"\n{command}:\n{log.read_text(encoding='utf-8').strip()}")
        if process.returncode is None:
            return f"it did not end within {BESIDE_SECONDS} s of the tests"
        return "its output is above" if process.returncode else ""

    try:
        yield end
    finally:
        if process.poll() is None:
            _end(process, signal.SIGKILL)  # with all that the shell has started


def run(
    tiers: Sequence[str], folder: Path, arguments: Sequence[str], limits: tuple[Limits, Limits]
) -> tuple[Session, Session | None]:
    """Run the tiers, then what failed and what was left, alone. Where that cannot change the verdict it is not run."""
    selected = [part for tier in tiers for part in ("--tier", tier)]
    first = session([*selected, *arguments], folder / "first.jsonl", limits[0])
    record = first.record
    again = [*record.failed, *(each for each in record.left if each not in record.failed)]
    hopeless = record.uncollected or len(record.failed) > MOST_ASKED_AGAIN
    if not again or hopeless:
        return first, None
    print(
        f"\nOnce more, alone: {len(record.failed)} that failed, {len(again) - len(record.failed)} that did not run",
        flush=True,
    )
    asked = folder / "again.txt"
    asked.write_text("\n".join(again), encoding="utf-8")
    return first, session(["-n", "1", f"@{asked}"], folder / "second.jsonl", limits[1])


def session(arguments: Sequence[str], file: Path, limits: Limits) -> Session:
    """Run pytest, and end it if nothing moves any more."""
    file.unlink(missing_ok=True)
    cache = file.with_suffix(".cache")
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", "--record", str(file)]
    command += [*limits.arguments(), *arguments]
    began = moved = time.monotonic()
    size, stuck = 0, False
    # Where this process is killed, the session ends with it, and with the session its servers.
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    with subprocess.Popen(through_child(command), start_new_session=True, env=environment) as process:
        try:
            while process.poll() is None:
                time.sleep(0.2)
                grown = file.stat().st_size if file.exists() else 0
                if grown != size:
                    size, moved = grown, time.monotonic()
                elif time.monotonic() - moved > (limits.still if size else COLLECTION_SECONDS):
                    stuck = True
                    # In front of the first test no limit of pytest's says where it hangs.
                    _end(process, *([signal.SIGINT] if size else [signal.SIGABRT]), signal.SIGKILL)
        except BaseException:
            _end(process, signal.SIGINT, signal.SIGKILL)
            raise
    return Session(process.returncode, Record.read(file), time.monotonic() - began, stuck)


def _end(process: subprocess.Popen[bytes], *numbers: int) -> None:
    """End a process with its group, by one signal after the other; servers end with those who started them."""
    for number in numbers:
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _verdict(tiers: Sequence[str], first: Session, second: Session | None, beside: dict[str, str]) -> int:
    """Print the end of the run, and return its exit code. `beside` is what else failed, with reasons."""
    twice = _failed_twice(first, second)
    flaky = _flaky(first, second)
    passed = len(first.record.passed | (second.record.passed if second else set()))
    seconds = first.seconds + (second.seconds if second else 0)
    print()
    for name, reason in (beside | twice).items():
        print(f"failed: {name} ({reason})")
    for name, reason in flaky.items():
        print(f"flaky: {name} (first: {reason})")
    print(f"{passed} passed, {len(twice)} failed, {len(first.record.skipped)} skipped")
    print(f"ran: {', '.join(tiers)}, in {seconds:.0f} s.  not run: {', '.join(_others(tiers))}.")
    if second is not None or not first.record.failed:  # else nobody asked
        _keep(tiers, flaky)
    if twice or beside:
        print("next: mend what failed; the log above has each by name")
        return 1
    if len(flaky) > MOST_FLAKY:
        print(f"next: {len(flaky)} tests failed once and passed alone; {MOST_FLAKY} are the limit: mend them")
        return 1
    print(f"next: {NEXT[tiers[-1]]}")
    return 0


def _keep(tiers: Sequence[str], flaky: dict[str, str]) -> None:
    """Write the flaky tests, by the tiers that ran; those of a run of other tiers stay. Raises OSError."""
    file = default_state() / "test" / "flaky.json"
    with locked(file.with_suffix(".lock")):
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        write_private(file, json.dumps({**known, " ".join(tiers): flaky}, indent=1) + "\n")


def _failed_twice(first: Session, second: Session | None) -> dict[str, str]:
    """Failures that count, with their reasons; a session that proves nothing is one."""
    found = dict(first.record.uncollected)
    if not first.record.collected:
        hangs = f"within {COLLECTION_SECONDS} s: a module hangs as it is imported, see above"
        found["the session"] = f"no test was collected {hangs if first.stuck else f'(exit code {first.code})'}"
    if second is None:
        found |= first.record.failed
        found |= dict.fromkeys(first.record.left, "it was never run")
        if not found and not first.record.passed:
            found["the session"] = "all tests were skipped, none has passed"
        if not found and first.code:
            found["the session"] = f"it ended with exit code {first.code}"
        return found
    found |= second.record.failed | second.record.uncollected
    found |= {each: "it failed, then it was skipped" for each in first.record.failed if each in second.record.skipped}
    if not found and second.code not in {0, 1}:
        found["the session that asked once more"] = f"it ended with exit code {second.code}"
    reason = "no test ended any more" if second.stuck else f"exit code {second.code}"
    asked = [*first.record.failed, *first.record.left]
    lost = [each for each in asked if each not in second.record.ended]
    return found | dict.fromkeys(lost, f"it was asked once more and did not end ({reason})")


def _flaky(first: Session, second: Session | None) -> dict[str, str]:
    """Tests that failed and passed when asked alone, with the first reason; and a session that ended too early."""
    if second is None:
        return {}
    good = second.record.passed - second.record.failed.keys()
    flaky = {name: reason for name, reason in first.record.failed.items() if name in good}
    if first.stuck or first.record.left or first.code not in {0, 1}:
        why = "no test ended any more" if first.stuck else f"exit code {first.code}"
        flaky["the session"] = f"it ended too early ({why}), and left {len(first.record.left)} tests"
    return flaky


def _others(tiers: Sequence[str]) -> list[str]:
    return [each for each in (*TIERS, "long", "e2e") if each not in tiers]


if __name__ == "__main__":
    sys.exit(main())
