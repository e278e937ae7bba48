"""Names of log levels in the configuration file and on the command line: goharvest's, and Python's."""

LOGGING_LEVELS = {
    "all": "debug",
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "critical": "critical",
    "off": "critical",
    "": "debug",
}
"""The nearest level of Python for each name in lower case. An empty name means debug, as in goharvest."""

NAMED_LEVELS = ", ".join(filter(None, LOGGING_LEVELS))


def python_level(name: str) -> str | None:
    """Return the level of Python's logging, in lower case, for a name; None if the name is unknown."""
    return LOGGING_LEVELS.get(name.lower())
