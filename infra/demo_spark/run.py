"""One run of `make demo-spark`.

    files ─► Spark ─► business table + outbox ─► harvesters ─► topic ─► consumers ─► totals

While files are written, each joint is killed: the driver during a micro-batch, its Python workers, every connection to
Postgres, the leader of the harvesters, and a consumer. At that last kill, another consumer is frozen longer than its
session. After each kill the demo waits until all orders written by then are in the totals. At the end the business
table, the topic and the totals are compared with the files.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

from harvest_lib.postgres.database import connect
from harvest_lib.postgres.translation import translated
from infra.demo.comparing import differences
from infra.demo.place import Place
from infra.demo.progress import Progress
from infra.demo.runner import DemoRun
from infra.demo_spark.comparison import in_business_table, in_topic, summary, total_differences, totals
from infra.demo_spark.orders import Orders
from infra.demo_spark.query import StreamQuery

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "spark_stream.py"

_CONSUMERS = 2
_WAIT_SECONDS = 90.0
# The table has no primary key, so a duplicate row would be stored, not refused.
_TABLE = "CREATE TABLE orders (order_id bigint, customer text, cents bigint, placed_at timestamptz)"
_SESSIONS = """
WITH sessions AS (
  SELECT pid, query FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
)
"""
_STAGING = f"{_SESSIONS} SELECT count(*) FROM sessions WHERE query LIKE 'COPY %'"  # noqa: S608 - constants
_CUT = f"""{_SESSIONS}
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM sessions
WHERE EXISTS (SELECT FROM sessions WHERE query LIKE 'COPY %')
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDemoPlan:
    """Length of a run: each joint is killed once in a round. Tests replace the programs to see the demo fail."""

    rounds: int = 2
    most_seconds: float = math.inf
    """Another round begins only if a round as long as the last would end within this time of the run's start."""
    per_second: int = 1_000
    seed: int = 2013
    program: Path = PROGRAM
    consumer: str = "harvest_lib.examples.order_totals"


def run(folder: Path, place: Place, progress: Progress, plan: SparkDemoPlan) -> dict[str, Any]:
    """Run the demo at `place`, and return its report. Raises HarvestError if a part of it fails."""
    began = time.monotonic()
    with connect(place.dsn) as connection, translated():
        connection.execute(_TABLE)
    with DemoRun(folder, place, progress, wait_seconds=_WAIT_SECONDS) as running:
        demo = _Demo(running, plan)
        for number in range(1, plan.rounds + 1):
            last_began = time.monotonic()
            progress.say(f"round {number} of {plan.rounds}", "bold")
            demo.kill_each_joint(number)
            if 2 * time.monotonic() - last_began - began > plan.most_seconds and number < plan.rounds:
                progress.say("this machine is too busy for another round")
                break
        report = demo.finish()
    return {**report, "seconds": round(time.monotonic() - began, 1)}


class _Demo:
    """The processes of a run, and the faults that are injected into them."""

    def __init__(self, run: DemoRun, plan: SparkDemoPlan) -> None:
        """Start all processes, and wait until the first order is in the totals."""
        self._run, self._place = run, run.place
        self._joints: dict[str, dict[str, Any]] = {}
        self.query = StreamQuery(plan.program, run.place, run.folder, seed=plan.seed)
        run.start(self.query)
        self.harvesters = run.harvest(size=plan.rounds + 1, delivery="transactional")
        self.orders = Orders(self.query.files, per_second=plan.per_second, seed=plan.seed)
        run.start(self.orders)
        self.consumers = run.consume(plan.consumer, "--min-txn", "0.5", size=_CONSUMERS)
        self._await_effects(1)
        run.progress.say(f"orders come through: {self._effects():,} of {self.orders.count():,} have taken effect")

    def kill_each_joint(self, number: int) -> None:
        """Kill every joint once. In odd rounds the driver is killed where Spark must repeat a write."""
        is_odd = bool(number % 2)
        where = "after it promoted a micro-batch" if is_odd else "anywhere in a micro-batch"
        self._kill("driver", f"the driver, {where}", lambda: self.query.kill_driver(is_promoted=is_odd))
        self._kill("workers", "the Python workers, while they stage", self._kill_workers)
        self._kill("connections", "every connection to Postgres, while Spark stages", self._cut_connections)
        self._kill("leader", "the harvester that leads", self._kill_leader)
        self._kill("consumer", "a consumer, and another frozen", self._kill_consumer)

    def finish(self) -> dict[str, Any]:
        """Stop the input, end each part when it has processed all orders, compare, and return the report."""
        self.orders.stop()
        rows = self.orders.count()
        self._await(
            lambda: self._run.ask("SELECT count(DISTINCT order_id) FROM orders") >= rows, "Spark does not get done"
        )
        self.query.finish()
        self._run.let_go(self.query)
        self._await_effects(self._run.ask("SELECT count(*) FROM orders"))
        self._run.let_go(self.harvesters)
        self.harvesters.end()
        records = in_topic(self._place)
        self._await_effects(len(records))
        self.consumers.stop()
        self._run.progress.say("all is through; comparing row by row", "bold")
        written = self.orders.written
        places = {
            "business": differences(written, in_business_table(self._place)),
            "records": differences(written, records),
            "effects": total_differences(written, totals(self._place)),
        }
        return {
            **summary(places, rows, list(self._joints.values())),
            "frozen": self.consumers.freezes,
            "late_commits_refused": self.consumers.fenced,
            "spark_restarts": self.query.restarts,
        }

    def _kill(self, joint: str, what: str, kill: Callable[[], None]) -> None:
        kill()
        began = time.monotonic()
        self._await_effects(self.orders.count())
        seconds = time.monotonic() - began
        known = self._joints.setdefault(joint, {"joint": joint, "kills": 0, "longest_seconds": 0.0})
        known["kills"] += 1
        known["longest_seconds"] = round(max(known["longest_seconds"], seconds), 1)
        self._run.progress.say(f"killed: {what}; all has taken effect {seconds:.1f} s later", "bold red")

    def _kill_workers(self) -> None:
        self.query.kill_workers(lambda: self._await_sessions(_STAGING))

    def _cut_connections(self) -> None:
        self.query.excuse()
        self._await_sessions(_CUT)

    def _await_sessions(self, query: LiteralString) -> None:
        """Repeat a query every 10 ms until it finds that Spark stages rows. Staging lasts some hundredths of a
        second."""
        with connect(self._place.dsn) as connection:

            def found() -> bool:
                row = connection.execute(query).fetchone()
                return bool(row and row[0])

            self._run.wait(found, "Spark stages nothing", tick_seconds=0.01, watched=[self.query.look])

    def _kill_leader(self) -> None:
        self.harvesters.kill(self._run.wait(lambda: self.harvesters.leader, "no harvester leads"))

    def _kill_consumer(self) -> None:
        self.consumers.inject_faults(self.orders.count, self._effects)

    def _await_effects(self, goal: int) -> None:
        self._await(lambda: self._effects() >= goal, "not all orders take effect")

    def _await(self, condition: Callable[[], bool], otherwise: str) -> None:
        self._run.wait(
            condition,
            otherwise,
            evidence=lambda: f"{self._effects():,} of {self.orders.count():,} orders have taken effect",
            progress=self._effects,
        )

    def _effects(self) -> int:
        return self._run.ask("SELECT coalesce(sum(orders), 0)::bigint FROM order_totals")
