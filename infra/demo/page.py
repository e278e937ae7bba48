"""The report of a demo as files: `report.json`, `report.png`, and `report.html` for a reader who was not there.

The page is one file that loads nothing else, and follows the reader's choice of light or dark.
"""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from infra.demo import picture
from infra.demo.progress import explained
from infra.demo.report import KILLS


def write(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the three files into a folder and return their paths."""
    files = [folder / f"report.{kind}" for kind in ("html", "png", "json")]
    files[0].write_text(html(report), encoding="utf-8")
    picture.png(report, files[1])
    files[2].write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return files


def html(report: Mapping[str, Any]) -> str:
    """Return the page."""
    template = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.substitute(
        verdict=_verdict(report),
        colour="good" if report["ok"] else "bad",
        picture=picture.svg(report),
        rows="".join(_rows(report)),
        committed=f"{report['committed']:,}",
        terms="".join(_term(number, term) for number, term in enumerate(report["terms"], start=1)),
        duplicates=_duplicates(report),
        versions=escape(", ".join(f"{name} {value}" for name, value in report["versions"].items())),
    )


def _verdict(report: Mapping[str, Any]) -> str:
    if report["ok"]:
        return (
            f"All {report['committed']:,} flights arrived, none lost, none out of order, "
            f"though the process at work was killed {_times(len(report['failovers']))}."
        )
    missing = [f"{report[name]:,} {name.replace('_', ' ')}" for name in _ZERO if report[name]]
    done = sum(failover["seconds"] is not None for failover in report["failovers"])
    if done < KILLS:
        missing.append(f"{done} of {KILLS} failovers seen")
    return f"This run failed: {', '.join(missing) or 'see the audit in report.json'}."


def _rows(report: Mapping[str, Any]) -> list[str]:
    rows = [
        _row("committed in Postgres", f"{report['committed']:,}", "flights, each with its outbox row"),
        _row("delivered to Kafka", f"{report['delivered']:,}", "of them, each counted once"),
    ]
    for name, (label, note) in _ZERO.items():
        rows.append(_row(label, f"{report[name]:,}", note, "bad" if report[name] else "good"))
    rows.append(_row("duplicates", f"{report['duplicates']:,}", "<br>".join(map(escape, explained(report))) or "none"))
    rows.append(
        _row("records per second", f"{report['records_per_second']:,}", "from the first to the last, kills included")
    )
    rows.append(_row("", f"{report['working_records_per_second']:,}", "while a leader was at work"))
    for number, failover in enumerate(report["failovers"], start=1):
        seconds = "never" if failover["seconds"] is None else f"{failover['seconds']:.1f} s"
        note = f"from SIGKILL to the next record in Kafka; {failover['backlog']:,} were waiting"
        rows.append(_row(f"failover {number}", seconds, note))
    rows.append(_row("Spark rows per second", f"{report['spark_rows_per_second']:,}", "staged and promoted"))
    rows.append(_row("wall time", f"{report['wall_seconds']:.0f} s", "servers' start and audit included"))
    return rows


def _row(label: str, value: str, note: str, colour: str = "") -> str:
    return f'<tr><th>{label}</th><td class="number {colour}">{value}</td><td class="note">{note}</td></tr>\n'


def _term(number: int, term: Mapping[str, Any]) -> str:
    numbers = [f"{term['records']:,}", f"{term['first']:.1f} to {term['last']:.1f} s"]
    cells = "".join(f'<td class="number">{each}</td>' for each in numbers)
    who = f"<td>harvester {term['harvester']}</td><td><code>{term['leader'][:8]}</code></td>"
    return f'<tr><td class="number">{number}</td>{who}{cells}</tr>\n'


def _duplicates(report: Mapping[str, Any]) -> str:
    if not report["duplicates"]:
        return "In this run nothing was in flight when a leader was killed, so nothing was sent twice."
    return (
        f"In this run {report['duplicates']:,} records were in flight when a leader was killed: in Kafka already, not "
        "yet purged from the outbox. Its successor could not know and sent them again. Each carries a header that "
        "names the term that sent it, which is how the audit tells these from duplicates that nothing explains."
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


_ZERO = {
    "lost": ("lost", "committed, not in Kafka"),
    "reordered": ("reordered", "first occurrences of an aircraft's flights out of order"),
    "order_violations": ("order violations", "any step back of an aircraft, repeats included"),
    "unexplained_duplicates": ("unexplained duplicates", "not sent again by a later term"),
    "unknown": ("unknown", "in Kafka, never committed"),
}
