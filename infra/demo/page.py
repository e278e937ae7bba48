"""The report of `make demo` as the files `report.json`, `report.png` and `report.html`.

The HTML page loads no other file, and follows the reader's choice of a light or a dark page.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from infra.demo import picture
from infra.demo.progress import lines
from infra.demo.report import ACTS, KILLS


def write(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the three files into a folder, and return their paths."""
    files = [folder / f"report.{kind}" for kind in ("html", "png", "json")]
    files[0].write_text(html(report), encoding="utf-8")
    picture.png(report, files[1])
    files[2].write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return files


def html(report: Mapping[str, Any]) -> str:
    """Return the text of the HTML page."""
    template = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    first, second = (report[name] for name in ACTS)
    return template.substitute(
        verdict=_verdict(report),
        colour="good" if report["ok"] else "bad",
        picture=picture.svg(report),
        rows="".join(_rows(report)),
        committed=f"{first['committed']:,}",
        terms="".join(_terms(first)),
        exact_terms="".join(_terms(second)),
        duplicates=_duplicates(first),
        versions=escape(", ".join(f"{name} {value}" for name, value in report["versions"].items())),
    )


def _verdict(report: Mapping[str, Any]) -> str:
    first, second = (report[name] for name in ACTS)
    if report["ok"]:
        return (
            f"All {first['committed']:,} flights arrived, none lost, none out of order, though the process at work was "
            f"killed {_times(len(first['failovers']))}; the second time exactly once."
        )
    missing = [
        f"{line.of(act):,} {line.label}{_of(act)}"
        for act in (first, second)
        for line in lines(report)
        if line.is_good(act) is False and line.of(act) is not None
    ]
    for act in (first, second):
        done = sum(failover["seconds"] is not None for failover in act["failovers"])
        if done < KILLS:
            missing.append(f"{done} of {KILLS} failovers seen{_of(act)}")
    return f"This run failed: {', '.join(missing) or 'see the audits in report.json'}."


def _of(act: Mapping[str, Any]) -> str:
    return " under exactly once" if act["exactly_once"] else ""


def _rows(report: Mapping[str, Any]) -> list[str]:
    acts = [report[name] for name in ACTS]
    rows = [
        _row(line.label, [(line.text(act), _COLOURS[line.is_good(act)]) for act in acts], line.note)
        for line in lines(report)
    ]
    rows.append(_row("wall time", [(f"{act['wall_seconds']:.0f} s", "") for act in acts], "its audit included"))
    return rows


def _row(label: str, values: Sequence[tuple[str, str]], note: str) -> str:
    cells = "".join(f'<td class="number {colour}">{value}</td>' for value, colour in values)
    return f'<tr><th>{label}</th>{cells}<td class="note">{escape(note).replace(chr(10), "<br>")}</td></tr>\n'


def _terms(act: Mapping[str, Any]) -> list[str]:
    return [_term(number, term) for number, term in enumerate(act["terms"], start=1)]


def _term(number: int, term: Mapping[str, Any]) -> str:
    numbers = [f"{term['records']:,}", f"{term['first']:.1f} to {term['last']:.1f} s"]
    cells = "".join(f'<td class="number">{each}</td>' for each in numbers)
    who = f"<td>harvester {term['harvester']}</td><td><code>{term['leader'][:8]}</code></td>"
    return f'<tr><td class="number">{number}</td>{who}{cells}</tr>\n'


def _duplicates(act: Mapping[str, Any]) -> str:
    if not act["duplicates"]:
        return "In this run nothing was in flight when a leader was killed, so nothing was sent twice."
    return (
        f"In this run {act['duplicates']:,} records were in flight when a leader was killed: in Kafka already, not "
        "yet purged from the outbox. Its successor could not know and sent them again. Each carries a header that "
        "names the term that sent it, which is how the audit distinguishes them from unexplained duplicates."
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


_COLOURS = {None: "", True: "good", False: "bad"}
