"""`make demo-spark`: orders pass from files through Spark, outbox and topic to totals, while each process is killed.

Exit codes: 0 each order took effect once; 1 an order did not, or a part of the demo failed; 130 interrupted; 143
terminated. No process is left running.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from infra.demo.place import Place
from infra.demo.progress import Progress
from infra.demo.runner import in_a_place, run_demo, zero
from infra.demo_spark.run import SparkDemoPlan, run

_MOST_SECONDS = 150.0  # start of the servers and comparison included, the demo takes three minutes
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


def _run(folder: Path, place: Place, progress: Progress) -> dict[str, Any]:
    return run(folder, place, progress, SparkDemoPlan(most_seconds=_MOST_SECONDS))


def _tables(report: Mapping[str, Any]) -> list[Table]:
    title = f"{report['rows']:,} orders from files, {report['kills']} kills, {report['seconds']:.1f} s"
    places = Table("", "orders", "lost", "duplicates", title=title, title_justify="left")
    for name, each in report["places"].items():
        places.add_row(_PLACES[name], f"{each['rows']:,}", zero(each["lost"]), zero(each["duplicates"]))
    if report["wrong_sums"]:
        places.add_row("customers with wrong sums", zero(report["wrong_sums"]))
    kills = Table("killed", "times", "all caught up within")
    for joint in report["joints"]:
        kills.add_row(_JOINTS[joint["joint"]], str(joint["kills"]), f"{joint['longest_seconds']:.1f} s")
    for column in (*places.columns[1:], *kills.columns[1:]):
        column.justify = "right"
    return [places, kills]


if __name__ == "__main__":
    sys.exit(run_demo("demo-spark", in_a_place(_run, topic="orders"), _tables))
