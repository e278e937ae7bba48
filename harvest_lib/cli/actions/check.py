"""Findings of `harvest check` and their output; `harvest run` shows the same when it cannot start."""

import logging
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harvest_lib.cli.options import configuration
from harvest_lib.cli.terminal import json_text, printable
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import ConfigError, HarvestError, KafkaError
from harvest_lib.harvester.preflight import Finding, Report, inspect

_COLOURS = {"error": "red", "warning": "yellow"}


def inspected(config: Path | None, topics: list[str]) -> Report:
    """Return the report of all checks. With a configuration that cannot be read, nothing else is checked."""
    logging.getLogger("harvest_lib").addHandler(logging.NullHandler())  # messages of clients are in the evidence
    try:
        harvest = configuration(config, elects=True).harvest
    except ConfigError as error:
        report = Report()
        for each in error.problems:
            report.add(Finding.of(each, "configuration"))
        return report
    report = inspect(harvest, topics)
    report.passed.insert(0, ("configuration", "it can be read"))
    return report


def as_json(report: Report) -> str:
    """Return a report as one JSON object."""
    problems = [
        {name: value for name, value in asdict(each).items() if name != "exit_code"} for each in report.findings
    ]
    passed = [{"area": area, "check": what} for area, what in report.passed]
    return json_text({"ok": not report.errors, "problems": problems, "passed": passed})


def show(report: Report, console: Console | None = None) -> None:
    """Print the passed checks, then each problem. The terminal breaks long lines, so that commands can be copied."""
    console = console or Console(highlight=False)
    for area in dict.fromkeys(area for area, _ in report.passed):
        checks = ", ".join(what for each, what in report.passed if each == area)
        _print(console, Text.assemble(("ok", "green"), f"       {area}: {printable(checks)}"))
    for each in report.findings:
        cause = printable(each.cause)
        _print(console, Text.assemble((f"{each.severity:<9}", _COLOURS[each.severity]), f"{each.area}: {cause}"))
        for what, text in (("evidence", each.evidence), ("next step", each.next_step)):
            if text:
                _print(console, Text(f"         {what}: {printable(text)}"))
    if report.findings and not report.passed:
        _print(console, Text("Postgres and Kafka were not checked: correct the configuration first."))
    errors, warnings = len(report.errors), len(report.findings) - len(report.errors)
    _print(console, Text(f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}"))


def refuse_to_start(config: HarvestConfig, error: HarvestError) -> None:
    """Show everything that keeps a harvester from starting, and exit as `error` does. Raises `error` itself if there is
    nothing more to say."""
    report = inspect(config)
    if not any(each.cause != error.cause for each in report.errors):
        raise error
    if all(each.cause != error.cause for each in report.errors):
        report.findings.insert(0, Finding.of(error, "kafka" if isinstance(error, KafkaError) else "postgres"))
    report.passed[1:] = []
    show(report, Console(stderr=True, highlight=False))
    raise SystemExit(error.exit_code)


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
