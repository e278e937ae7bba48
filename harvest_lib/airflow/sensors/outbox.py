"""The sensor that waits until an outbox is delivered."""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSensorTimeout

from harvest_lib.airflow.awaited import EMPTY, START, Awaited
from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.operators.raised import permanent, raise_outcome
from harvest_lib.airflow.outcomes import LATE, SUCCEEDED
from harvest_lib.airflow.provider import OUTBOX_ID
from harvest_lib.airflow.triggers.outbox import OutboxDrainedTrigger
from harvest_lib.errors import DatabaseUnavailable, HarvestError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from harvest_lib.config import HarvestConfig

_BACKSTOP = timedelta(minutes=2)


class OutboxDrainedSensor(BaseSensorOperator):
    """Wait until records of an outbox are in Kafka. With `deferrable=True`, the wait occupies no worker.

    `until` is one of

    - `start` (the default): every record that was committed before this task began is delivered. Later records do not
      prolong the wait.
    - `empty`: no committed record waits. Parked records are not counted.
    - a time, such as `{{ data_interval_end }}`: every record that was committed before this time, by Postgres's clock,
      is delivered.

    A parked record is not delivered: `start` and a time wait for its retry. Returns the time before which every
    committed record is delivered (`delivered_until`, empty if it is unknown) and the number of records that wait
    (`waiting`), as texts. Raises AirflowSensorTimeout at the end of `timeout`, and AirflowFailException if another try
    would find the same error, such as a table that is missing. Raises DatabaseUnavailable if Postgres does not answer
    for `patience`.
    """

    template_fields: Sequence[str] = ("conn_id", "until")

    def __init__(
        self,
        *,
        conn_id: str = OUTBOX_ID,
        until: str | datetime = START,
        patience: timedelta = timedelta(minutes=5),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **arguments: Any,
    ) -> None:
        """Make the task. `conn_id` names an Airflow connection of type `outbox`. Raises ValueError for
        `mode="reschedule"` unless `until` is `empty`, because each reading would forget the time of the first."""
        super().__init__(**arguments)
        if self.mode == "reschedule" and until != EMPTY and not deferrable:
            raise ValueError(f"with mode='reschedule' `until` has to be {EMPTY!r}: use deferrable=True or mode='poke'")
        self.conn_id = conn_id
        self.until = until
        self.patience = patience
        self.deferrable = deferrable
        self._awaited: Awaited | None = None
        self._config: HarvestConfig | None = None
        self._answered = time.monotonic()

    def execute(self, context: "Context") -> Any:
        """Read the outbox once, and hand over to the trigger if that is not delivered. Without `deferrable`, read it
        until it is delivered."""
        self._answered = time.monotonic()
        if not self.deferrable:
            return super().execute(context)
        if (found := self.poke(context)).is_done:
            return found.xcom_value
        trigger = OutboxDrainedTrigger(
            conn_id=self.conn_id,
            until=_text(self.until),
            deadline=time.time() + self.timeout,
            poll_seconds=self.poke_interval,
            patience_seconds=self.patience.total_seconds(),
        )
        # Airflow's own timeout raises an error without a cause. It only ends the wait if no triggerer runs at all.
        return self.defer(trigger=trigger, method_name="completed", timeout=timedelta(seconds=self.timeout) + _BACKSTOP)

    def poke(self, context: "Context") -> PokeReturnValue:  # noqa: ARG002 - Airflow's
        """Read the outbox. The log shows the reading."""
        with permanent():
            self._awaited = self._awaited or Awaited(_text(self.until))
            self._config = self._config or HarvestHook(self.conn_id).config()
            try:
                found = self._awaited.read(self._config)
            except DatabaseUnavailable as error:
                if time.monotonic() - self._answered > self.patience.total_seconds():
                    raise
                self.log.warning("%s", error)
                return PokeReturnValue(is_done=False)
        self._answered = time.monotonic()
        self.log.info("%s", found)
        return PokeReturnValue(is_done=found.is_done, xcom_value=found.as_xcom())

    def completed(self, context: "Context", event: dict[str, str]) -> dict[str, str]:  # noqa: ARG002 - Airflow's
        """Return the reading of an outbox that is delivered. Raise the error for any other outcome."""
        if event["outcome"] == LATE:
            raise AirflowSensorTimeout(f"{event['cause']}: {event['evidence']}; next step: {event['next_step']}")
        if event["outcome"] != SUCCEEDED:
            raise_outcome(event, HarvestError)
        return {name: value for name, value in event.items() if name != "outcome"}


def _text(until: str | datetime) -> str:
    return until if isinstance(until, str) else until.isoformat()
