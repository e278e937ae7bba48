"""A stack that stays up after the command that started it: a process in the background holds it.

`up` starts that process in a session of its own and returns once it reports that all servers answer; `down` asks it
to stop and waits. A server that ends by itself is started again; one that keeps ending takes the stack down. Killing
the process takes the servers with it, and the next `up` starts anew.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import NoReturn

import structlog

from harvest_lib.errors import StackError
from harvest_lib.local_stack.description import Description, process_started, running
from harvest_lib.local_stack.process import tail
from harvest_lib.local_stack.stack import Stack
from harvest_lib.local_stack.state import locked, make_folder, private_log

_WATCH_SECONDS = 0.5
_REVIVALS, _REVIVALS_SECONDS = 3, 60
_DOWN_SECONDS = 120

_log = structlog.get_logger(__name__)


class Stopped(BaseException):
    """SIGTERM or SIGINT came."""


def hold(stack: Stack) -> NoReturn:
    """Watch over a stack that is up until `Stopped`; raises StackError when a server keeps ending."""
    revivals: deque[float] = deque(maxlen=_REVIVALS)
    while True:
        time.sleep(_WATCH_SECONDS)
        if names := stack.revive():
            _log.warning("servers_restarted", servers=names)
            if len(revivals) == _REVIVALS and time.monotonic() - revivals[0] < _REVIVALS_SECONDS:
                raise StackError(
                    f"{' and '.join(names)} kept ending",
                    evidence=f"{_REVIVALS + 1} times within {_REVIVALS_SECONDS} s",
                    next_step=f"read the logs in {stack.state / 'logs'}",
                )
            revivals.append(time.monotonic())


def stop_on_signals() -> None:
    """Make the first SIGTERM or SIGINT raise `Stopped` in the main thread; later ones do not disturb the stop."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_stopped)


def up(
    state: Path,
    *,
    postgres: str,
    kafka: str,
    brokers: int,
    fresh: bool,
    definitions: str = "",
    secure: bool = False,
) -> tuple[Description, bool]:
    """Bring the stack up in the background; returns it, and whether it was up already.

    Raises StackError when it does not come up, or is up with other versions or another number of brokers.
    """
    make_folder(state)
    with locked(state / "up.lock"):  # a second `up` waits for the first, then finds the stack
        if found := running(state):
            _check_same(found, postgres=postgres, kafka=kafka, brokers=brokers, fresh=fresh)
            _check_platform(found, wanted=bool(definitions))
            _check_secure(found, wanted=secure)
            return found, True
        command = [sys.executable, "-m", "harvest_lib.local_stack.supervisor", "--state", str(state)]
        command += ["--postgres", postgres, "--kafka", kafka, "--brokers", str(brokers)]
        command += ["--definitions", definitions]
        command += [*(["--fresh"] if fresh else []), *(["--secure"] if secure else [])]
        _launch(command, make_folder(state / "logs") / "supervisor.log")
        found = running(state)
    if found is None:
        raise StackError(
            "the stack ended as soon as it was up",
            evidence=tail(state / "logs" / "supervisor.log"),
            next_step="run `harvest up` again",
        )
    return found, False


def down(state: Path) -> bool:
    """End the stack in the background and wait for it; false when none was up. Raises StackError when it stays."""
    found = running(state)
    if found is None:
        return False
    os.kill(found.pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_SECONDS
    while process_started(found.pid) == found.started:
        if time.monotonic() > deadline:
            raise StackError(
                f"the stack did not end within {_DOWN_SECONDS} s",
                evidence=tail(state / "logs" / "supervisor.log"),
                next_step=f"end it by force: kill -9 {found.pid}",
            )
        time.sleep(0.05)
    return True


def _check_same(found: Description, *, postgres: str, kafka: str, brokers: int, fresh: bool) -> None:
    databases = [server.version for server in found.servers if server.name == "postgres"]
    clusters = [server.version for server in found.servers if server.name.startswith("kafka-")]
    same = databases in ([], [postgres]) and clusters in ([], [kafka] * brokers)
    if fresh or not same:
        versions = ", ".join(f"{server.name} {server.version}" for server in found.servers)
        raise StackError(
            "a stack is up already, and what was asked for needs another one",
            evidence=f"up: {versions}",
            next_step="end it with `harvest down` first",
        )


def _check_platform(found: Description, *, wanted: bool) -> None:
    if wanted and not found.airflow_login:
        raise StackError(
            "a stack is up already, without Dagster and Airflow",
            evidence=f"up: {', '.join(server.name for server in found.servers)}",
            next_step="end it with `harvest down` first; its data stays",
        )


def _check_secure(found: Description, *, wanted: bool) -> None:
    if wanted is not bool(found.secure):
        raise StackError(
            "a stack is up already, and it is not a secured one" if wanted else "a secured stack is up already",
            evidence=f"up: {', '.join(server.name for server in found.servers)}",
            next_step="end it with `harvest down` first; its data stays",
        )


def _launch(command: list[str], log: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as report:
        with private_log(log) as output:
            process = subprocess.Popen(
                [*command, "--report", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                start_new_session=True,
            )
        os.close(writing)
        try:
            answer = report.read()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if not answer:
        raise StackError(
            "the process that holds the stack ended while it started",
            evidence=tail(log),
            next_step=f"read {log}",
        )
    failure = json.loads(answer)
    process.returncode = 0  # it lives on without us: no warning about it at our end
    if failure:
        process.wait()
        raise StackError(failure["cause"], evidence=failure["evidence"], next_step=failure["next_step"])


def _raise_stopped(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise Stopped


def main(arguments: list[str]) -> int:
    """Hold a stack until told to stop; what came of starting it goes to the descriptor given as `--report`."""
    parser = argparse.ArgumentParser(description="hold the local stack in the background")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--postgres", required=True)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--brokers", type=int, required=True)
    parser.add_argument("--definitions", default="")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--secure", action="store_true")
    parser.add_argument("--report", type=int, required=True)
    options = parser.parse_args(arguments)
    stop_on_signals()
    report = os.fdopen(options.report, "w")
    try:
        with Stack(
            options.state,
            options.postgres,
            options.kafka,
            options.brokers,
            fresh=options.fresh,
            definitions=options.definitions,
            secure=options.secure,
        ) as stack:
            report.write("{}")
            report.close()
            _log.info("stack_up", state=str(options.state))
            hold(stack)
    except Stopped:
        _log.info("stack_down")
        return 0
    except StackError as error:
        _log.error("stack_down", reason=str(error))
        if not report.closed:
            failure = {"cause": error.cause, "evidence": error.evidence, "next_step": error.next_step}
            report.write(json.dumps(failure))
        return error.exit_code
    finally:
        report.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
