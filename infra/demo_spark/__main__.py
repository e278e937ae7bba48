"""`make demo-spark`: orders go from files by Spark, outbox and topic into totals, while each joint is killed.

Exit codes: 0 each order took effect once; 1 otherwise, or something failed; 130 interrupted, and 143 terminated, with
nothing left running.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from harvest_lib.local_stack import Stack
from harvest_lib.local_stack.state import make_folder
from infra.demo.place import made
from infra.demo.progress import Progress
from infra.demo_spark.run import DemoPlan, run
from infra.interruption import run_demo

_MOST_SECONDS = 150.0  # of three minutes: servers start before, and all is compared after
_PLACES = {
    "business": "rows in the business table",
    "records": "committed records in the topic",
    "effects": "effects, in the totals",
}
_JOINTS = {
    "driver": "Spark driver, in a micro-batch",
    "workers": "Python workers, while they stage",
    "connections": "all connections to Postgres",
    "leader": "harvester that leads",
    "consumer": "consumer, another frozen",
}


def _run(state: Path, progress: Progress) -> dict[str, Any]:
    folder = make_folder(state / "demo-spark")
    with Stack(folder / "stack", fresh=True, parts=state) as stack:
        for left in ("files", "checkpoint", "tmp"):
            shutil.rmtree(folder / left, ignore_errors=True)
        for log in folder.glob("*.log"):
            log.unlink()
        progress.say("Postgres and Kafka run")
        with made(stack, topic="orders") as place:
            return run(
                folder, place, progress, DemoPlan(most_seconds=_MOST_SECONDS, short_sessions=stack.kafka is not None)
            )


def _tables(report: Mapping[str, Any]) -> Group:
    title = f"{report['rows']:,} orders from files, {report['kills']} kills, {report['seconds']:.1f} s"
    places = Table("", "orders", "lost", "duplicates", title=title, title_justify="left")
    for name, each in report["places"].items():
        places.add_row(_PLACES[name], f"{each['rows']:,}", _zero(each["lost"]), _zero(each["duplicates"]))
    if report["wrong_sums"]:
        places.add_row("customers with wrong sums", _zero(report["wrong_sums"]))
    kills = Table("killed", "times", "all caught up within")
    for joint in report["joints"]:
        kills.add_row(_JOINTS[joint["joint"]], str(joint["kills"]), f"{joint['longest_seconds']:.1f} s")
    for column in (*places.columns[1:], *kills.columns[1:]):
        column.justify = "right"
    return Group(places, kills)


def _zero(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "green")


if __name__ == "__main__":
    sys.exit(run_demo("demo-spark", _run, _tables))
