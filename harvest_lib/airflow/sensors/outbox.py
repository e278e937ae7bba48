"""The sensors that wait until an outbox is delivered, or until an audit has passed."""

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from harvest_lib.airflow.audited import MAX_BACKLOG_AGE, AuditFailed
from harvest_lib.airflow.awaited import EMPTY, START, Awaiting
from harvest_lib.airflow.compat import AirflowSensorTimeout, conf
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.operators.raised import permanent, raise_outcome
from harvest_lib.airflow.outcomes import LATE, SUCCEEDED
from harvest_lib.airflow.provider import OUTBOX_ID
from harvest_lib.airflow.triggers.outbox import AuditPassedTrigger, OutboxDrainedTrigger, OutboxTrigger
from harvest_lib.errors import DatabaseUnavailable, HarvestError, NothingChecked

if TYPE_CHECKING:
    from airflow.sdk import Context

    from harvest_lib.config import HarvestConfig

_BACKSTOP = timedelta(minutes=2)


class OutboxSensor(BaseSensorOperator):
    """A sensor that reads an outbox until a condition holds, in a worker or, with `deferrable=True`, in the triggerer.

    Raises AirflowSensorTimeout at the end of `timeout`, and AirflowFailException if another try would find the same
    error, such as a table that is missing. Raises DatabaseUnavailable if Postgres does not answer for `patience`.
    """

    template_fields: Sequence[str] = ("conn_id",)
    waits_by: ClassVar[type[OutboxTrigger]]

    def __init__(
        self,
        *,
        conn_id: str = OUTBOX_ID,
        patience: timedelta = timedelta(minutes=5),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **arguments: Any,
    ) -> None:
        """Make the task. `conn_id` names an Airflow connection of type `outbox`."""
        super().__init__(**arguments)
        self.conn_id = conn_id
        self.patience = patience
        self.deferrable = deferrable
        self._awaiting: Awaiting | None = None
        self._config: HarvestConfig | None = None
        self._answered = time.monotonic()

    @abstractmethod
    def _condition(self) -> Mapping[str, Any]:
        """Return the arguments of the class that reads the outbox."""

    def execute(self, context: "Context") -> Any:
        """Read the outbox once, and hand over to the trigger if the condition does not hold. Without `deferrable`, read
        it until the condition holds."""
        self._answered = time.monotonic()
        if not self.deferrable:
            return super().execute(context)
        if (found := self.poke(context)).is_done:
            return found.xcom_value
        trigger = self.waits_by(
            conn_id=self.conn_id,
            deadline=time.time() + self.timeout,
            poll_seconds=self.poke_interval,
            patience_seconds=self.patience.total_seconds(),
            **self._reader().condition,  # the trigger counts from this task's first reading, not from its own
        )
        # Airflow's own timeout raises an error without a cause. It only ends the wait if no triggerer runs at all.
        return self.defer(trigger=trigger, method_name="completed", timeout=timedelta(seconds=self.timeout) + _BACKSTOP)

    def _reader(self) -> Awaiting:
        self._awaiting = self._awaiting or self.waits_by.reads(**self._condition())
        return self._awaiting

    def poke(self, context: "Context") -> PokeReturnValue:  # noqa: ARG002 - Airflow's
        """Read the outbox. The log shows the reading."""
        with permanent(AuditFailed, NothingChecked):
            reader = self._reader()
            self._config = self._config or HarvestHook(self.conn_id).config()
            try:
                found = reader.read(self._config)
            except DatabaseUnavailable as error:
                if time.monotonic() - self._answered > self.patience.total_seconds():
                    raise
                self.log.warning("%s", error)
                return PokeReturnValue(is_done=False)
        self._answered = time.monotonic()
        self.log.info("%s", found)
        return PokeReturnValue(is_done=found.is_done, xcom_value=found.as_xcom())

    def completed(self, context: "Context", event: dict[str, str]) -> dict[str, str]:  # noqa: ARG002 - Airflow's
        """Return the reading for which the condition holds. Raise the error for any other outcome."""
        if event["outcome"] == LATE:
            raise AirflowSensorTimeout(f"{event['cause']}: {event['evidence']}; next step: {event['next_step']}")
        if event["outcome"] != SUCCEEDED:
            raise_outcome(event, HarvestError)
        return {name: value for name, value in event.items() if name != "outcome"}


class OutboxDrainedSensor(OutboxSensor):
    """Wait until records of an outbox are in Kafka.

    `until` is one of

    - `start` (the default): every record that was committed before this task began is delivered. Later records do not
      prolong the wait.
    - `empty`: no committed record waits. Parked records are not counted.
    - a time, such as `{{ data_interval_end }}`: every record that was committed before this time, by Postgres's clock,
      is delivered.

    A parked record is not delivered: `start` and a time wait for its retry. Returns the time before which every
    committed record is delivered (`delivered_until`, empty if it is unknown) and the number of records that wait
    (`waiting`), as texts.
    """

    template_fields: Sequence[str] = ("conn_id", "until")
    waits_by = OutboxDrainedTrigger

    def __init__(self, *, until: str | datetime = START, **arguments: Any) -> None:
        """Make the task. Raises ValueError for `mode="reschedule"` unless `until` is `empty`, because each reading
        would forget the time of the first."""
        super().__init__(**arguments)
        if self.mode == "reschedule" and until != EMPTY and not self.deferrable:
            raise ValueError(f"with mode='reschedule' `until` has to be {EMPTY!r}: use deferrable=True or mode='poke'")
        self.until = until

    def _condition(self) -> Mapping[str, Any]:
        return {"until": _text(self.until)}


class AuditPassedSensor(OutboxSensor):
    """Wait until an audit has proved that topics have every committed record, once and in order.

    Any audit that stores its result counts: `OutboxAuditOperator`, `python -m harvest_lib.spark.audit`, and Dagster's.
    The audit must have covered all `topics`, and must have read the committed records after `since`: `start` (the
    default) is the start of this task; or a time, such as `{{ data_interval_end }}`, by Postgres's clock. Returns the
    audit's numbers as texts. If that audit found anomalies, or no committed record, the task fails permanently with
    the numbers.
    """

    template_fields: Sequence[str] = ("conn_id", "topics", "since", "audit_prefix")
    waits_by = AuditPassedTrigger

    def __init__(
        self,
        *,
        topics: Sequence[str],
        since: str | datetime = START,
        audit_prefix: str = "",
        allow_empty: bool = False,
        max_backlog_age: timedelta = MAX_BACKLOG_AGE,
        **arguments: Any,
    ) -> None:
        """Make the task. Only audits whose id begins with `audit_prefix` count. `allow_empty` accepts an audit without
        a committed record. An audit that found a record waiting for `max_backlog_age` does not count, and neither does
        any while a record of the topics is parked. Raises ValueError for `mode="reschedule"` with `since="start"`,
        because each reading would forget the time of the first."""
        super().__init__(**arguments)
        if self.mode == "reschedule" and since == START and not self.deferrable:
            raise ValueError("with mode='reschedule' `since` has to be a time: use deferrable=True or mode='poke'")
        self.topics = topics
        self.since = since
        self.audit_prefix = audit_prefix
        self.allow_empty = allow_empty
        self.max_backlog_age = max_backlog_age

    def _condition(self) -> Mapping[str, Any]:
        of_audit: dict[str, Any] = {"prefix": self.audit_prefix, "allow_empty": self.allow_empty}
        of_audit["max_backlog_age"] = self.max_backlog_age.total_seconds()
        return {"topics": self.topics, "since": _text(self.since), **of_audit}


def _text(moment: str | datetime) -> str:
    return moment if isinstance(moment, str) else moment.isoformat()
