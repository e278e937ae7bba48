"""A job of `harvest_lib.spark` in a process of its own, which reaches the outbox of an Airflow connection.

The process gets Postgres by the variable HARVEST_DSN, and the other settings in a file in memory that it alone
inherits. It ends with the task, even if the task is killed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harvest_lib.config import HarvestConfig
from harvest_lib.config.environment import environment_values
from harvest_lib.errors import HarvestError
from harvest_lib.local_stack import child

_CONFIG_VARIABLE, _DSN_VARIABLE = "HARVEST_CONFIG", "HARVEST_DSN"
_END_SECONDS = 3.0
"""Time to end. Airflow kills a task 5 s after it asked the task to end."""
_QUOTED_LINES = 20
_PERMANENT_CODES = frozenset({3, 4})
"""Exit codes of errors that another try would find again: wrong arguments, and tables that are missing."""


class SparkJobFailed(HarvestError):
    """A job of Spark failed: its last lines have the reason."""


class SparkJobRefused(SparkJobFailed):
    """A job of Spark was refused, and would be refused again: its last lines have the reason."""


def run_spark_job(
    module: str,
    config: HarvestConfig,
    arguments: Sequence[str],
    *,
    say: Callable[[str], None],
    well: Sequence[int] = (),
) -> dict[str, Any]:
    """Run `python -m module` for an outbox, pass each line of its output to `say`, and return the JSON object that it
    printed last.

    `well` are the exit codes besides 0 that are no failure. If this function is interrupted, the process ends too.
    Raises SparkJobFailed, or SparkJobRefused if no retry changes the error.
    """
    _, ours = environment_values(os.environ, HarvestConfig.model_fields)
    hidden = {*ours.values(), _CONFIG_VARIABLE}  # `config` has their values, or overrides them
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # In the file it would be read by the rules of goharvest, which has other defaults than libpq.
    environment[_DSN_VARIABLE] = config.data_source.conninfo()
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with os.fdopen(os.memfd_create("harvest.yaml"), "wb") as settings:
        settings.write(json.dumps({"harvest": _settings(config)}).encode())
        settings.flush()
        job = [sys.executable, "-m", module, "-f", f"/dev/fd/{settings.fileno()}", "--json", *arguments]
        with subprocess.Popen(
            [sys.executable, child.__file__, "--parent", str(os.getpid()), "--", *job],
            env=environment,
            pass_fds=[settings.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            try:
                lines = _lines(process, say)
                code = process.wait()
            finally:
                _end(process)
    if code not in {0, *well}:
        raise (SparkJobRefused if code in _PERMANENT_CODES else SparkJobFailed)(
            f"{module} failed with exit code {code}",
            evidence="\n".join(lines[-_QUOTED_LINES:]) or "it printed nothing",
            next_step="follow its last message, and run this task again: nothing is written twice",
        )
    return _document(lines, module)


def _settings(config: HarvestConfig) -> dict[str, Any]:
    pool = {"leaderGroupID": config.leader_group_id} if config.leader_group_id else {"leadership": "solo"}
    return {
        **pool,
        "baseKafkaConfig": dict(config.base_kafka_config),
        "producerKafkaConfig": dict(config.producer_kafka_config),
        "outboxTable": config.outbox_table,
        "subscription": config.subscription,
        "source": config.source,
    }


def _lines(process: "subprocess.Popen[str]", say: Callable[[str], None]) -> list[str]:
    lines = []
    for line in process.stdout or ():
        if text := line.strip():
            lines.append(text)
            say(text)
    return lines


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _document(lines: Sequence[str], module: str) -> dict[str, Any]:
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    raise SparkJobFailed(
        f"{module} ended well and printed no result",
        evidence="\n".join(lines[-_QUOTED_LINES:]) or "it printed nothing",
        next_step="run it on this machine with the same arguments",
    )
