"""Log of the command line: through structlog, to standard error, as readable lines or JSON."""

import logging
import sys
from typing import TextIO

import structlog

from harvest_lib.cli.options import LogFormat
from harvest_lib.errors import ConfigError
from harvest_lib.logging_levels import NAMED_LEVELS, python_level

_SHARED: list[structlog.typing.Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _on_one_line(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Join the lines of texts, of which the console would show the breaks as `\\n`."""
    return {
        name: "; ".join(filter(None, map(str.strip, value.splitlines()))) if isinstance(value, str) else value
        for name, value in event.items()
    }


def configure_logging(log_format: LogFormat, level: str) -> "logging.StreamHandler[TextIO]":
    """Send every record of the standard library's logging to standard error, by the handler returned.

    `level` is a name of `logging.level` in a file. Raises ConfigError for any other.
    """
    python = python_level(level)
    if python is None:
        raise ConfigError(f"{level!r} is no level of the log", next_step=f"choose one of {NAMED_LEVELS}")
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [
            _on_one_line,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                pad_event_to=24,
                # The default shows the variables of each frame: payloads, and the connection string.
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(python.upper())
    return handler
