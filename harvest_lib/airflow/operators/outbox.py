"""The operator that harvests an outbox inside a task, until it is empty."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from harvest_lib.airflow.compat import AirflowException, conf
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.lineage import outbox_name, topic_names
from harvest_lib.airflow.operators.on_outbox import OutboxOperator
from harvest_lib.airflow.operators.raised import permanent, raise_outcome
from harvest_lib.airflow.outcomes import LATE, SUCCEEDED
from harvest_lib.airflow.task_log import with_fields
from harvest_lib.airflow.triggers.outbox import LeaderDrainedTrigger
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import HarvestError
from harvest_lib.harvester.draining import progress, require_ready
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.interpreter import tune_interpreter
from harvest_lib.outbox import OutboxTable
from harvest_lib.postgres.database import connect, server_time
from harvest_lib.source.parked import readable_parked_table

if TYPE_CHECKING:
    from airflow.sdk import Context

_TRIGGER_SECONDS = 300.0
"""Time for which the trigger waits for the leader before a worker tries to lead again."""


class HarvestDrainOperator(OutboxOperator):
    """Deliver an outbox to Kafka inside this task, and end when the outbox is empty: a batch job needs no daemon.

    The harvester of the task is a member of the pool. If another process leads, the task waits, and ends when that
    process has delivered all records that were there when the task began. With `deferrable=True` it waits in the
    triggerer. A task that is killed loses nothing: the next try goes on, and repeats what the delivery permits.

    Returns the number of records that this task delivered (`records`), of those that are parked in the end (`parked`;
    None if the connection's role may not read them), and the seconds (`seconds`). Raises HarvestError with all problems
    that `harvest check` finds, and AirflowFailException if another try would find the same.
    """

    template_fields: Sequence[str] = ("conn_id", "topics")

    def __init__(
        self,
        *,
        topics: Sequence[str] = (),
        report: timedelta = timedelta(seconds=30),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **arguments: Any,
    ) -> None:
        """Make the task. `topics` are checked before the start, in addition to the topics of the records that wait. The
        log shows the progress each `report`. With `deferrable`, a task that does not lead by then leaves its worker."""
        super().__init__(**arguments)
        self.topics = topics
        self.report = report
        self.deferrable = deferrable
        self._harvest: Harvest | None = None
        self._is_killed = False

    def execute(self, context: "Context") -> dict[str, float | None]:  # noqa: ARG002 - Airflow's
        """Check, harvest until the outbox is empty, and return the result."""
        return self._drain(began=None, delivered=0, seconds=0.0)

    def resumed(
        self,
        context: "Context",  # noqa: ARG002 - Airflow's
        event: Mapping[str, str],
        began: float | None = None,  # `dag.test()` leaves out all but the event
        delivered: int = 0,
        seconds: float = 0.0,
    ) -> dict[str, float | None]:
        """End if the leader has delivered the records. If it has not, harvest again, and perhaps lead."""
        if event["outcome"] == LATE:
            return self._drain(began=began, delivered=delivered, seconds=seconds)
        if event["outcome"] != SUCCEEDED:
            raise_outcome(event, HarvestError)
        with permanent():
            return self._result(HarvestHook(self.conn_id).config(), delivered, seconds)

    def _drain(self, *, began: float | None, delivered: int, seconds: float) -> dict[str, float | None]:
        """Harvest. `began` is the time, by Postgres's clock, at which the task began; None if it begins now. The other
        arguments count what it did before."""
        started = time.monotonic()
        with permanent(), with_fields(self.log):
            config = HarvestHook(self.conn_id).config(elects=True)
            self._harvest = harvest = Harvest(config)  # now, so that `on_kill` reaches it while the checks run
            if self._is_killed:
                harvest.stop()
            for each in require_ready(config, self.topics):
                self.log.warning("%s (%s): %s", each.cause, each.evidence, each.next_step)
            open_outbox = partial(connect, config.data_source.conninfo())
            if began is None:
                with open_outbox() as connection:
                    began = server_time(connection)
            counts = harvest.count_topics()
            tune_interpreter()
            leaves = False
            with harvest:
                for text in progress(harvest, open_outbox, self.report.total_seconds()):
                    self.log.info("%s", text)
                    if leaves := self.deferrable and not harvest.is_leader:
                        break
            self._lineage.read.append(outbox_name(config))
            self._lineage.written += topic_names(config, counts.read())
            delivered += harvest.delivered_records
            seconds += time.monotonic() - started
            self.log.info("delivered %d records in %.1f s", delivered, seconds)
            if self._is_killed:
                raise AirflowException("the task was ended before the outbox was empty: the next run goes on")
            if not leaves:
                return self._result(config, delivered, seconds)
        self.log.info("another process leads: this task waits in the triggerer")
        return self.defer(
            trigger=LeaderDrainedTrigger(
                conn_id=self.conn_id,
                deadline=time.time() + _TRIGGER_SECONDS,
                poll_seconds=self.report.total_seconds(),
                patience_seconds=_TRIGGER_SECONDS,
                began=began,
            ),
            method_name="resumed",
            kwargs={"began": began, "delivered": delivered, "seconds": seconds},
        )

    def _result(self, config: HarvestConfig, delivered: int, seconds: float) -> dict[str, float | None]:
        parked = None
        try:
            with connect(config.data_source.conninfo()) as connection:
                table = readable_parked_table(connection, OutboxTable.parse(config.outbox_table), config)
                found = table.summary(connection)
        except HarvestError as error:
            self.log.warning("it is not known whether records are parked: %s", error)
        else:
            parked = found.parked + found.held
        if parked:
            reasons = "; ".join(found.reasons)
            self.log.warning(
                "%d records are parked, so they are not delivered: %s (`harvest park list`)", parked, reasons
            )
        return {"records": delivered, "parked": parked, "seconds": round(seconds, 3)}

    def on_kill(self) -> None:
        """Stop the harvester in order: it waits for the records in flight, and releases leadership."""
        self._is_killed = True
        if self._harvest is not None:
            self._harvest.stop()
