"""`python -m infra.chaos.alerts`: inject each fault, and see which alerts it fires; write the table of docs/alerts.md.

Exit codes: 0 each fault fired exactly the expected alerts; 1 a fault did not; 2 an unknown fault was named, or
Prometheus is missing.
"""

import argparse
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harvest_lib.local_stack.state import default_state, make_folder
from infra.chaos.alert_matrix import ALLOWED_SECONDS, FACTOR, Episode, run, scaled_rules_of_run
from infra.chaos.expected_alerts import CASES
from infra.chaos.faults import FAULTS, missing
from infra.chaos.prometheus import prometheus_lacking
from infra.chaos.report import put_table

BROKERS = 3


def markdown(episodes: Sequence[Episode], left_out: Mapping[str, str], *, command: str, minutes: float) -> str:
    """Return the table of alerts by fault, with the command and the date of the run. Times are the divided times."""
    _, rules = scaled_rules_of_run()
    wrong = [sentence for each in episodes for sentence in each.wrong(rules)]
    lines = [
        f"{len(episodes)} faults in {minutes:.0f} minutes; unexpected, missing, early or late alerts: {len(wrong)}. "
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}. Times are divided by {FACTOR:g}, and {ALLOWED_SECONDS:g} s "
        "are allowed.",
        "",
        "| fault | lasted | should fire | fired after (the rule's time) | ended after |",
        "| --- | --- | --- | --- | --- |",
    ]
    for each in episodes:
        fired = [f"{one.alert} {one.after_seconds:.1f} s ({rules[one.alert].due_seconds:g} s)" for one in each.fired]
        ended = [f"{one.ended_seconds:.1f} s" for one in each.fired]
        should = ", ".join(sorted(each.case.alerts)) or "none"
        cells = (str(each.case), f"{each.lasted_seconds:.0f} s", should, ", ".join(fired) or "none", ", ".join(ended))
        lines.append(f"| {' | '.join(cells)} |")
    if left_out:
        lines += ["", f"Not injected: {'; '.join(f'`{fault}` ({why})' for fault, why in left_out.items())}."]
    lines += ["", *(f"- {sentence}" for sentence in wrong)]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject the faults, print what was wrong, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.chaos.alerts", description=__doc__)
    parser.add_argument("--faults", default="", help="only these, separated by commas")
    parser.add_argument("--table", type=Path, help="write the table into this file")
    asked = parser.parse_args(arguments)
    names = [each for each in asked.faults.split(",") if each] or list(FAULTS)
    if unknown := sorted(set(names) - FAULTS.keys()):
        parser.error(f"unknown: {', '.join(unknown)}")
    if asked.faults and asked.table is not None:
        parser.error("--table writes the table of all faults: leave out --faults")
    if lacking := prometheus_lacking():
        parser.error(lacking)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # writers' connections are cut on purpose
    left_out = {name: why for name, why in missing(BROKERS).items() if name in names}
    cases = [case for case in CASES if case.fault in names and case.fault not in left_out]
    parts, began = default_state(), time.monotonic()
    folder = make_folder(parts / "chaos" / f"alerts-{time.strftime('%H%M%S')}").resolve()
    episodes = list(run(cases, brokers=BROKERS, folder=folder, parts=parts, say=_say))
    _, rules = scaled_rules_of_run()
    wrong = [sentence for each in episodes for sentence in each.wrong(rules)]
    for sentence in wrong:
        _say(sentence)
    if asked.table is not None:
        minutes, options = (time.monotonic() - began) / 60, sys.argv[1:] if arguments is None else arguments
        command = " ".join(["python -m infra.chaos.alerts", *options])
        put_table(markdown(episodes, left_out, command=command, minutes=minutes), asked.table)
    return 1 if wrong else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
