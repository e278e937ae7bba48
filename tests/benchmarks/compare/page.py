"""The comparison as a part of a page of the documentation: figures, versions, configurations, the command."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.compare.live import RATE
from tests.benchmarks.compare.peer import Built
from tests.benchmarks.compare.results import rounded
from tests.benchmarks.report import Result

_BEGINS, _ENDS = "<!-- comparison -->", "<!-- end of comparison -->"
_ROWS: Sequence[tuple[str, str]] = (
    ("drain, records/s", "drain-{}"),
    ("long drain, records/s", "drain-long-{}"),
    ("the same on servers of its own", "{}-to-alone"),
    (f"latency at {RATE}/s, median", f"latency-{RATE}-{{}}-p50"),
    (f"latency at {RATE}/s, 99th percentile", f"latency-{RATE}-{{}}-p99"),
    ("SIGKILL to the first record committed after it", "failover-{}"),
    ("duplicates after it", "failover-{}-duplicates"),
    ("lost after it", "failover-{}-lost"),
    ("CPU for 10⁶ records, relay", "cpu-{}"),
    ("CPU for 10⁶ records, Postgres and Kafka", "cpu-{}-servers"),
    ("CPU for 10⁶ records, all together", "cpu-{}-together"),
    ("memory, relay", "memory-{}"),
    ("idle CPU, relay", "idle-{}"),
    ("idle CPU, Postgres and Kafka", "idle-{}-servers"),
    (f"Postgres, for 1,000 records at {RATE}/s: WAL", "primary-wal-{}"),
    ("transactions", "primary-transactions-{}"),
    ("row versions", "primary-rows-{}"),
    ("pages read, in its cache or from disk", "primary-pages-{}"),
    ("connections", "primary-connections-{}"),
    ("WAL kept for 1,000 records while the relay is down", "primary-held-{}"),
)


def markdown(
    results: Sequence[Result],
    titles: Mapping[str, str],
    built: Mapping[str, Built],
    left_out: Mapping[str, str],
    conditions: Sequence[str],
) -> str:
    """Write tables of the figures and the ratios, what was left out, and how it was measured."""
    shown = [each for each in titles if each in built]
    by_name = {result.name: result for result in results}
    lines = [*conditions, "", f"| | {' | '.join(titles[each] for each in shown)} |", f"| --- |{' ---: |' * len(shown)}"]
    for label, name in _ROWS:
        cells = [_cell(by_name.get(name.format(each)), alone="alone" in name) for each in shown]
        if any(cells):
            lines.append(f"| {label} | {' | '.join(cells)} |")
    lines += ["", *_ratios(results, titles)]
    lines += ["", *(f"- Left out: {what}: {why}" for what, why in left_out.items())] if left_out else []
    lines += ["", "Versions: " + "; ".join(f"{name} {of}" for name, of in _versions(built).items()) + "."]
    for each in shown:
        lines += ["", f"{titles[each]}:", "", "```", built[each].configuration.strip(), "```"]
    return "\n".join(lines) + "\n"


def put(text: str, file: Path) -> None:
    """Write it into a file, in place of what is between its marks. Raises ValueError without them."""
    before, begins, rest = file.read_text(encoding="utf-8").partition(_BEGINS)
    _, ends, after = rest.partition(_ENDS)
    if not (begins and ends):
        raise ValueError(f"{file} has no marks {_BEGINS} and {_ENDS}")
    file.write_text(f"{before}{_BEGINS}\n{text}{_ENDS}{after}", encoding="utf-8")


def _ratios(results: Sequence[Result], titles: Mapping[str, str]) -> Iterator[str]:
    yield "| drain, median of the rounds' ratios | ratio | least and greatest |"
    yield "| --- | ---: | --- |"
    for result in results:
        ours, _, other = result.name.removeprefix("long-").partition("-to-")
        if other in titles and result.ratio is not None and result.ratios is not None:
            least, greatest = result.ratios
            spread = f"{least:.1f} to {greatest:.1f}"
            kind = ", long" if result.name.startswith("long-") else ""
            yield f"| {titles[ours]} to {titles[other]}{kind} | {result.ratio:.1f} | {spread} |"


def _cell(result: Result | None, *, alone: bool) -> str:
    if result is None:
        return ""
    value = result.floor if alone and result.floor is not None else result.value
    unit = {"/s": "", "records": "", "s/million": " s", "% core": " %"}.get(result.unit, f" {result.unit}")
    return (rounded(value) + unit).rstrip()


def _versions(built: Mapping[str, Built]) -> Mapping[str, str]:
    return {name: version for each in built.values() for name, version in each.versions.items()}
