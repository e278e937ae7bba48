"""The harvester's log in the log of a task. Airflow shows the message of a record, and not its further fields."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


class _Fields(logging.Handler):
    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields = " ".join(f"{name}={value}" for name, value in vars(record).items() if name not in _STANDARD)
        self._log.log(record.levelno, "%s", f"{record.getMessage()} {fields}".rstrip(), exc_info=record.exc_info)


@contextmanager
def with_fields(log: Any) -> Iterator[None]:
    """Write the harvester's records, with their fields as `name=value`, to the log of a task during the `with` block,
    and not to the handlers that they have otherwise."""
    ours, handler = logging.getLogger("harvest_lib"), _Fields(log)
    ours.addHandler(handler)
    before, ours.propagate = ours.propagate, False
    try:
        yield
    finally:
        ours.propagate = before
        ours.removeHandler(handler)
