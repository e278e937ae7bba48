"""`make demo-pipeline`: a table and its changes are copied to Kafka, a second table and Parquet, through ten kills.

Exit codes: 0 each destination equals the source; 1 a destination differs, or a part of the demo failed; 130
interrupted; 143 terminated. No process is left running.
"""

import sys
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from infra.demo.runner import in_a_place, run_demo, zero
from infra.demo_pipeline.run import run

_NAMES = {
    "events": "Kafka",
    "copy": "a second table",
    "lake": "Parquet",
}


def _tables(report: Mapping[str, Any]) -> list[Table]:
    title = f"{report['rows']:,} rows of the source, after {report['changes']:,} changes and {report['kills']} kills"
    table = Table("", "rows", "differ", "messages", "repeats", "unexplained", title=title, box=SIMPLE)
    for column in table.columns:
        column.no_wrap = True
        column.justify = "right"
    table.columns[0].justify = "left"
    for name, each in report["destinations"].items():
        table.add_row(
            _NAMES[name],
            _count(each["rows"]),
            zero(each["differences"]),
            _count(each["messages"]),
            _count(each["duplicates"]),
            zero(each["unexplained_duplicates"]),
        )
    return [table]


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


if __name__ == "__main__":
    sys.exit(run_demo("demo-pipeline", in_a_place(run), _tables))
