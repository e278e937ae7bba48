"""`harvest check`: finds all problems that would keep a harvester from starting or delivering."""

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harvest_lib.cli.options import ConfigFile, Json, chosen_file, configuration, names_of
from harvest_lib.cli.terminal import json_text, printable
from harvest_lib.cli.usage import require_topics
from harvest_lib.errors import ConfigError, HarvestError, KafkaError

if TYPE_CHECKING:
    from harvest_lib.config import HarvestConfig
    from harvest_lib.harvester.preflight import Report

_COLOURS = {"error": "red", "warning": "yellow"}


def check(
    config: ConfigFile = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Topics of later records, with commas between them; may be repeated. Those in the outbox are found.",
        ),
    ] = None,
    dagster: Annotated[
        bool, typer.Option("--dagster", help="Check too what the role needs to harvest and audit in Dagster.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check configuration, Postgres, Kafka and clocks, and print every problem with the command that fixes it.

    Run it as the role and with the settings of the harvester. It changes nothing.
    Errors keep the harvester from starting or records from arriving, warnings do
    neither. The first error determines the exit code.

    Examples:

      harvest check -f harvest.yaml --topic orders --topic refunds

      harvest check -f harvest.yaml --dagster

      harvest check -f harvest.yaml --json | jq '.problems[].next_step'
    """
    topics = names_of(topic)
    require_topics(topics, "--topic")
    report = _inspected(config, topics, in_dagster=dagster)
    if as_json:
        problems = [
            {name: value for name, value in asdict(each).items() if name != "exit_code"} for each in report.findings
        ]
        passed = [{"area": area, "check": what} for area, what in report.passed]
        typer.echo(json_text({"ok": not report.errors, "problems": problems, "passed": passed}))
    else:
        _show(report)
    sys.exit(report.exit_code)


def refuse_to_start(config: "HarvestConfig", error: HarvestError) -> None:
    """Print all problems that prevent a start, and exit with the exit code of `error`. If the checks find no other
    error than `error`, raise `error` instead."""
    from harvest_lib.harvester.preflight import Finding, inspect

    report = inspect(config)
    if not any(each.cause != error.cause for each in report.errors):
        raise error
    if all(each.cause != error.cause for each in report.errors):
        report.findings.insert(0, Finding.of(error, "kafka" if isinstance(error, KafkaError) else "postgres"))
    report.passed[1:] = []
    _show(report, err=True)
    raise SystemExit(error.exit_code)


def _inspected(config: Path | None, topics: list[str], *, in_dagster: bool) -> "Report":
    """Return the report of all checks. If the configuration cannot be read, nothing else is checked."""
    from harvest_lib.config.reading import refuse_unknown_variables
    from harvest_lib.harvester.preflight import Finding, Report, inspect

    logging.getLogger("harvest_lib").addHandler(logging.NullHandler())  # the evidence has the clients' messages
    try:
        harvest = configuration(config, elects=True).harvest
    except ConfigError as error:
        report = Report()
        for each in error.problems:
            report.add(Finding.of(each, "configuration"))
        return report
    report = inspect(harvest, topics, in_dagster=in_dagster)
    report.passed.insert(0, ("configuration", chosen_file(config)[1]))
    try:
        refuse_unknown_variables()
    except ConfigError as error:
        for each in error.problems:
            report.warn("configuration", each.cause, evidence=each.evidence, next_step=each.next_step)
    return report


def _show(report: "Report", *, err: bool = False) -> None:
    """Print the passed checks, then each problem. Only the terminal wraps long lines, so that commands can be
    copied."""
    from harvest_lib.cli.tables import print_line

    for area in dict.fromkeys(area for area, _ in report.passed):
        checks = ", ".join(what for each, what in report.passed if each == area)
        print_line(("ok", "green"), f"       {area}: {printable(checks)}", err=err)
    for each in report.findings:
        print_line((f"{each.severity:<9}", _COLOURS[each.severity]), f"{each.area}: {printable(each.cause)}", err=err)
        for what, text in (("evidence", each.evidence), ("next step", each.next_step)):
            if text:
                print_line(f"         {what}: {printable(text)}", err=err)
    if report.findings and not report.passed:
        print_line("Postgres and Kafka were not checked: correct the configuration first.", err=err)
    errors, warnings = len(report.errors), len(report.findings) - len(report.errors)
    print_line(f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}", err=err)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
