"""Log like the application: by the standard library's logging, or through structlog.

    python docs/examples/custom_logger.py [--structlog]

HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS are the addresses of Postgres and Kafka, by default on localhost. The outbox
must exist (`harvest init`). Ctrl-C or SIGTERM ends the program.

The library logs only by `logging`. Its loggers are named after its modules, so they are all below `harvest_lib`.
Messages are fixed names of events; variable data is in `extra` fields. librdkafka's own lines come from
`harvest_lib.librdkafka`.
"""

import logging
import signal
import sys

import structlog

from harvest_lib import Harvest, HarvestConfig

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class FieldsFormatter(logging.Formatter):
    """Format an event with its fields behind it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{name}={value}" for name, value in record.__dict__.items() if name not in _STANDARD]
        return " ".join([super().format(record), *fields])


def with_standard_logging() -> logging.Formatter:
    """Return the formatter above."""
    return FieldsFormatter("%(asctime)s %(levelname)s [%(name)s] %(message)s")


def with_structlog() -> logging.Formatter:
    """Return a formatter that passes records to structlog's processors."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )


def main() -> None:
    """Configure logging, then harvest."""
    handler = logging.StreamHandler()
    handler.setFormatter(with_structlog() if "--structlog" in sys.argv else with_standard_logging())
    logger = logging.getLogger("harvest_lib")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # the application's own handlers would write it a second time

    harvest = Harvest(HarvestConfig(leader_group_id="example-custom-logger"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: harvest.stop())
    with harvest:
        while not harvest.await_stopped(0.2):
            pass


if __name__ == "__main__":
    main()
