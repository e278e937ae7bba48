"""The operator that harvests an outbox inside a task, until it is empty."""

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from harvest_lib.airflow.compat import AirflowException
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.lineage import outbox_name, topic_names
from harvest_lib.airflow.operators.on_outbox import OutboxOperator
from harvest_lib.airflow.operators.raised import permanent
from harvest_lib.harvester.draining import progress, require_ready
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.postgres.database import connect

if TYPE_CHECKING:
    from airflow.sdk import Context


class HarvestDrainOperator(OutboxOperator):
    """Deliver an outbox to Kafka inside this task, and end when the outbox is empty: a batch job needs no daemon.

    The harvester of the task is a member of the pool. If another process leads, the task waits, and ends when that
    process has delivered all records that were there when the task began. A task that is killed loses nothing: the
    next try goes on, and repeats what the delivery permits. Returns the number of records that this task delivered
    (`records`), and its seconds (`seconds`). Raises HarvestError with all problems that `harvest check` finds, and
    AirflowFailException if another try would find the same.
    """

    template_fields: Sequence[str] = ("conn_id", "topics")

    def __init__(
        self,
        *,
        topics: Sequence[str] = (),
        report: timedelta = timedelta(seconds=30),
        **arguments: Any,
    ) -> None:
        """Make the task. `topics` are checked before the start, in addition to the topics of the records that wait. The
        log shows the progress each `report`."""
        super().__init__(**arguments)
        self.topics = topics
        self.report = report
        self._harvest: Harvest | None = None
        self._is_killed = False

    def execute(self, context: "Context") -> dict[str, float]:  # noqa: ARG002 - Airflow's
        """Check, harvest until the outbox is empty, and return the result."""
        began = time.monotonic()
        with permanent():
            config = HarvestHook(self.conn_id).config(elects=True)
            self._harvest = harvest = Harvest(config)  # now, so that `on_kill` reaches it while the checks run
            if self._is_killed:
                harvest.stop()
            for each in require_ready(config, self.topics):
                self.log.warning("%s (%s): %s", each.cause, each.evidence, each.next_step)
            counts = harvest.count_topics()
            tune_interpreter()
            with harvest:
                for text in progress(
                    harvest, partial(connect, config.data_source.conninfo()), self.report.total_seconds()
                ):
                    self.log.info("%s", text)
        self._lineage.read.append(outbox_name(config))
        self._lineage.written += topic_names(config, counts.read())
        seconds = round(time.monotonic() - began, 3)
        self.log.info("delivered %d records in %.1f s", harvest.delivered_records, seconds)
        if self._is_killed:
            raise AirflowException("the task was ended before the outbox was empty: the next run goes on")
        return {"records": harvest.delivered_records, "seconds": seconds}

    def on_kill(self) -> None:
        """Stop the harvester in order: it waits for the records in flight, and releases leadership."""
        self._is_killed = True
        if self._harvest is not None:
            self._harvest.stop()
