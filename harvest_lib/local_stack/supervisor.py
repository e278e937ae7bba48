"""A stack that stays up after the command that started it, because a process in the background holds it.

`up` starts that process in a session of its own, and returns when the process reports that all servers answer. `down`
requests the process to stop, and waits until the process has ended. The process restarts a server that ends by itself.
If servers end too often, the process stops the stack. If the process is killed, its servers end too.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

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
    """Raised in the main thread when the process receives SIGTERM or SIGINT."""


def hold(stack: Stack) -> NoReturn:
    """Restart ended servers of a running stack, until `Stopped` is raised. Raises StackError if servers had to be
    restarted four times within a minute."""
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
    """Make the first SIGTERM or SIGINT raise `Stopped` in the main thread. Later signals are ignored, so that they do
    not interrupt the stop."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_stopped)


def up(
    state: Path,
    options: Mapping[str, Any],
    *,
    holder: str = "harvest_lib.local_stack.supervisor",
    difference: Callable[[Description], str] = lambda _: "",
) -> tuple[Description, bool]:
    """Start the stack in the background. Return its description, and True if it was already running.

    A process that executes the module `holder`, with the options as JSON, runs the stack. If a stack is already
    running, its servers are compared with the options, and `difference` compares everything else: it returns a text
    with the difference, empty if the running stack is the same. Raises StackError if the stack does not start, or if a
    different stack is running, such as a stack with other versions or another number of brokers.
    """
    make_folder(state)
    with locked(state / "up.lock"):  # a second `up` waits for the first, then finds the stack
        if found := running(state):
            _check_same(found, _difference(found, options) or difference(found))
            return found, True
        command = [sys.executable, "-m", holder, str(state), json.dumps(options)]
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
    """Stop the stack that runs in the background, and wait until it has ended. Return False if no stack was running.
    Raises StackError if the stack does not end in time."""
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


def _difference(found: Description, options: Mapping[str, Any]) -> str:
    databases = [server.version for server in found.servers if server.name == "postgres"]
    clusters = [server.version for server in found.servers if server.name.startswith("kafka-")]
    kafka, secure = [options["kafka"]] * options["brokers"], options.get("secure", False)
    if options["fresh"] or databases not in ([], [options["postgres"]]) or clusters not in ([], kafka):
        return "a stack is up already, and the requested versions need another stack"
    if secure is not bool(found.secure):
        return "a stack is up already, and it is not secured" if secure else "a secured stack is up already"
    return ""


def _check_same(found: Description, difference: str) -> None:
    if difference:
        raise StackError(
            difference,
            evidence=f"up: {', '.join(f'{server.name} {server.version}' for server in found.servers)}",
            next_step="end it with `harvest down` first; its data stays",
        )


def _launch(command: list[str], log: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as report:
        with private_log(log) as output:
            process = subprocess.Popen(
                [*command, str(writing)],
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
    process.returncode = 0  # prevents Python's warning at exit about a child process that still runs
    if failure:
        process.wait()
        raise StackError(failure["cause"], evidence=failure["evidence"], next_step=failure["next_step"])


def _raise_stopped(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise Stopped


def main(make: Callable[[], Stack], descriptor: int) -> int:
    """Start a stack and keep it running until a stop is requested. Write the result of the start, as JSON, to the file
    descriptor. Return the exit code."""
    stop_on_signals()
    report = os.fdopen(descriptor, "w")
    try:
        with make() as stack:
            report.write("{}")
            report.close()
            _log.info("stack_up", state=str(stack.state))
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
    sys.exit(main(lambda: Stack(Path(sys.argv[1]), **json.loads(sys.argv[2])), int(sys.argv[3])))
