"""One demo of a stream from end to end.

    files ─► Spark ─► business table + outbox ─► harvesters ─► topic ─► consumers ─► totals

While files come, each joint is killed: the driver in a micro-batch, its Python workers, every connection to Postgres,
the leader of the harvesters, a consumer; and another consumer is frozen past its session. After each kill the demo
waits until all that was written by then has taken effect. In the end every place is compared with the files.
"""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from harvest_lib.database import connect, translated
from harvest_lib.errors import StackError
from harvest_lib.local_stack.state import default_state, write_private
from infra.consumers import SHORT_SESSION, ConsumerPool
from infra.demo.place import Place
from infra.demo.pool import Pool
from infra.demo.progress import Progress
from infra.demo_spark.comparison import (
    differences,
    in_business_table,
    in_topic,
    summary,
    total_differences,
    totals,
)
from infra.demo_spark.orders import Orders
from infra.demo_spark.query import StreamQuery
from infra.waiting import until

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "spark_stream.py"

_CONSUMERS = 2
_WAIT_SECONDS = 90.0
_SESSION = ("--set", "session.timeout.ms=6000")
# Without a key: a row that came twice would be in it, and not be refused.
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
class DemoPlan:
    """Length of a run: each joint is killed once in a round. The programs may be others, to see the demo fail."""

    rounds: int = 2
    most_seconds: float = math.inf
    """A further round begins only if it would end by then, should it take as long as the last one."""
    per_second: int = 1_000
    short_sessions: bool = True
    """True if the broker allows consumers sessions of 2 s."""
    seed: int = 2013
    program: Path = PROGRAM
    consumer: str = "harvest_lib.examples.order_totals"


def run(folder: Path, place: Place, progress: Progress, plan: DemoPlan) -> dict[str, Any]:
    """Run a demo in a place of its own, and return its report. Raises HarvestError where it fails."""
    began = time.monotonic()
    with ExitStack() as ending:
        with connect(place.dsn) as connection, translated():
            connection.execute(_TABLE)
        demo = _Demo(folder, place, progress, plan)
        ending.callback(demo.stop)
        config = folder / "harvest.yaml"
        write_private(config, place.reaper_yaml(delivery="transactional"))
        ending.callback(config.unlink, missing_ok=True)  # holds a password
        demo.start()
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
    """The processes, and the faults done to them."""

    def __init__(self, folder: Path, place: Place, progress: Progress, plan: DemoPlan) -> None:
        self._place, self._progress = place, progress
        self.query = StreamQuery(plan.program, place, folder, state=default_state(), seed=plan.seed)
        self.orders = Orders(self.query.files, per_second=plan.per_second, seed=plan.seed)
        self.harvesters = Pool(folder / "harvest.yaml", folder, size=plan.rounds + 1)
        self.consumers = ConsumerPool(
            plan.consumer,
            ["--topic", place.topic, "--min-txn", "0.5", *(SHORT_SESSION if plan.short_sessions else _SESSION)],
            variables={"HARVEST_DSN": place.dsn, "HARVEST_BOOTSTRAP_SERVERS": place.bootstrap_servers},
            folder=folder,
        )
        self._working: list[StreamQuery | Pool] = [self.query, self.harvesters]
        """Those that must not end by themselves."""
        self._folder = folder
        self._joints: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Start everything, and wait for the first effect."""
        for part in (self.query, self.harvesters, self.orders):
            part.start()
        self.consumers.start(_CONSUMERS)
        self._await_effects(1)
        self._progress.say(f"orders come through: {self._effects():,} of {self.orders.count():,} have taken effect")

    def stop(self) -> None:
        """End everything."""
        self.orders.stop()
        self.query.stop()
        self.harvesters.stop()
        self.consumers.stop()

    def kill_each_joint(self, number: int) -> None:
        """Kill one joint after the other. Every other driver is killed where Spark must repeat a write."""
        if number % 2:
            self._kill("driver", "the driver, after it promoted a micro-batch", self._kill_promoted)
        else:
            self._kill("driver", "the driver, anywhere in a micro-batch", self.query.kill_driver)
        self._kill("workers", "the Python workers, while they stage", self._kill_workers)
        self._kill("connections", "every connection to Postgres, while Spark stages", self._cut_connections)
        self._kill("leader", "the harvester that leads", self._kill_leader)
        self._kill("consumer", "a consumer, and another frozen", self._kill_consumer)

    def finish(self) -> dict[str, Any]:
        """Let all orders through, end every part once it has nothing left to do, and compare."""
        self.orders.stop()
        rows = self.orders.count()
        self._await(lambda: self._ask("SELECT count(DISTINCT order_id) FROM orders") >= rows, "Spark does not get done")
        self.query.finish()
        self._working.remove(self.query)
        self._await_effects(self._ask("SELECT count(*) FROM orders"))
        self._working.remove(self.harvesters)
        self.harvesters.end()
        records = in_topic(self._place)
        self._await_effects(len(records))
        self.consumers.stop()
        self._progress.say("all is through; comparing row by row", "bold")
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
        self._progress.say(f"killed: {what}; all has taken effect {seconds:.1f} s later", "bold red")

    def _kill_promoted(self) -> None:
        with connect(self._place.dsn) as connection:

            def promoted() -> int:
                row = connection.execute("SELECT count(*) FROM orders_batches").fetchone()
                return int(str(row[0])) if row else 0

            self.query.kill_driver(promoted)

    def _kill_workers(self) -> None:
        self.query.kill_workers(lambda: self._await_sessions(_STAGING))

    def _cut_connections(self) -> None:
        self.query.excuse()
        self._await_sessions(_CUT)

    def _await_sessions(self, query: LiteralString) -> None:
        """Ask again and again until Spark stages rows, which takes some hundredths of a second."""
        with connect(self._place.dsn) as connection:

            def found() -> bool:
                self.query.look()
                row = connection.execute(query).fetchone()
                return bool(row and row[0])

            until(found, _WAIT_SECONDS, "Spark stages nothing", next_step=self._advice, tick_seconds=0.01)

    def _kill_leader(self) -> None:
        def leader() -> bool:
            self.harvesters.look()
            return self.harvesters.leader is not None

        until(leader, _WAIT_SECONDS, "no harvester leads", next_step=self._advice)
        lead = self.harvesters.leader
        assert lead is not None  # noqa: S101 - was waited for
        self.harvesters.kill(lead)

    def _kill_consumer(self) -> None:
        self.consumers.inject_faults(self.orders.count, self._effects)

    def _await_effects(self, goal: int) -> None:
        self._await(lambda: self._effects() >= goal, "not all orders take effect")

    def _await(self, condition: Callable[[], bool], otherwise: str) -> None:
        def reached() -> bool:
            for part in self._working:
                part.look()
            return condition()

        until(
            reached,
            _WAIT_SECONDS,
            otherwise,
            evidence=lambda: f"{self._effects():,} of {self.orders.count():,} orders have taken effect",
            next_step=self._advice,
        )

    def _effects(self) -> int:
        return self._ask("SELECT coalesce(sum(orders), 0)::bigint FROM order_totals")

    def _ask(self, query: str) -> int:
        with connect(self._place.dsn) as connection:
            try:
                row = connection.execute(query).fetchone()
            except psycopg.errors.UndefinedTable:  # the first consumer makes it
                return 0
        if row is None:
            raise StackError("Postgres gives no answer", next_step=self._advice)
        return int(str(row[0]))

    @property
    def _advice(self) -> str:
        return f"read the logs in {self._folder}"
