"""Log of the command line: structlog writes it to standard error, as readable lines or as JSON."""

import logging
import select
import sys
from typing import TextIO

import structlog

from harvest_lib.cli.log_writer import FLUSH_SECONDS, LogWriter
from harvest_lib.cli.options import LogFormat
from harvest_lib.errors import ConfigError
from harvest_lib.process.logging_levels import NAMED_LEVELS, python_level

_SHARED: list[structlog.typing.Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _on_one_line(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Join the lines of each text of an event by `; `, because the console would show line breaks as `\\n`."""
    return {
        name: "; ".join(filter(None, map(str.strip, value.splitlines()))) if isinstance(value, str) else value
        for name, value in event.items()
    }


def configure_logging(log_format: LogFormat, level: str) -> "logging.StreamHandler[TextIO]":
    """Send every record of the standard library's logging to standard error, and return the handler that does so.

    The handler is a `LogWriter`, so that no code waits for the reader of the log. If standard error is a stream in
    memory, without a file descriptor, records are written directly. `level` is a value of the setting `logging.level`;
    raises ConfigError for other values.
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
                # The default prints the variables of each frame, with payloads and the connection string.
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    )
    handler = LogWriter(sys.stderr) if _has_file(sys.stderr) else logging.StreamHandler(sys.stderr)
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


def log_is_read() -> bool:
    """Wait until the log is written, for at most two seconds. Return False if standard error is blocked because its
    reader has stopped reading."""
    for each in logging.getLogger().handlers:
        each.flush()
    return not _has_file(sys.stderr) or bool(select.select((), (sys.stderr,), (), FLUSH_SECONDS)[1])


def _has_file(stream: TextIO) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError):  # standard error was closed when the process began, or is in memory
        return False
    return True
