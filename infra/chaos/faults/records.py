"""Faults of single records."""

import base64
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import psycopg
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from infra.chaos.commands import harvest
from infra.chaos.faults.fault import Fault
from infra.chaos.history.events import Park
from infra.chaos.parked import count, retry_all
from infra.chaos.system import TOPIC, System
from infra.chaos.writing import SLOW_KEYS, Writing
from infra.waiting import until

_LIMIT_BYTES = 300_000
"""Size limit of the topic during the fault. Batches of ordinary records stay below it, even after a wait."""
_LARGE_BYTES = 400_000
_LIMIT = "max.message.bytes"
_ANSWER_SECONDS = 10
_PARKED_SECONDS = 60.0


@contextmanager
def _record_too_large(system: System, draw: random.Random, write: Callable[[], Writing]) -> Iterator[None]:
    """Write a record that is too large for the topic, and another record of its key. Both are parked. At the end of
    the fault the limit is removed, and the large record is either retried or dropped."""
    _set_limit(system, ConfigEntry(_LIMIT, str(_LIMIT_BYTES), incremental_operation=AlterConfigOpType.SET))
    key = f"slow-{draw.randint(1, SLOW_KEYS)}"
    large = _write(system, write(), key, base64.b64encode(draw.randbytes(_LARGE_BYTES)).decode())
    behind = _write(system, write(), key, "")
    _await_parked(system)
    system.happened.append(Park(type="ok", process="chaos", step="park", events=large + behind))
    try:
        yield
    finally:
        _set_limit(system, ConfigEntry(_LIMIT, None, incremental_operation=AlterConfigOpType.DELETE))
        step: Literal["retry", "drop"] = draw.choice(("retry", "drop"))
        system.happened.append(Park(type="ok", process="chaos", step="retry", events=behind))
        system.happened.append(Park(type="ok", process="chaos", step=step, events=large))
        if step == "retry":
            retry_all(system)
        else:
            harvest("park", "drop", "--all", "--yes", "-f", system.operator_config())


def _write(system: System, writing: Writing, key: str, padding: str) -> tuple[str, ...]:
    """Commit a record of the key, and return its event id in a tuple."""
    with psycopg.connect(system.dsn) as connection:
        writing.write(connection, [key], padding)
        writing.begin_end()
        connection.commit()
    writing.end("ok")
    return writing.events


def _await_parked(system: System) -> None:
    """Wait until a record is parked."""
    with psycopg.connect(system.dsn, autocommit=True) as connection:
        until(
            lambda: count(system.mode, connection) > 0,
            _PARKED_SECONDS,
            "no harvester has parked the record that is too large",
            next_step="read the logs of the harvesters",
        )


def _set_limit(system: System, entry: ConfigEntry) -> None:
    admin = AdminClient({"bootstrap.servers": system.kafka.bootstrap_servers, "log_level": 0})
    topic = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([topic], request_timeout=_ANSWER_SECONDS).values():
        answer.result()


FAULTS: Mapping[str, Fault] = {
    "record-too-large": Fault(
        promise="it is parked, later records of its key wait, other keys continue", inject=_record_too_large
    ),
}
