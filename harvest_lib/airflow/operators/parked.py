"""The operator that sends parked records again."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harvest_lib.airflow.operators.on_outbox import OutboxOperator
from harvest_lib.errors import ConfigError
from harvest_lib.outbox.parking import ParkedSelection
from harvest_lib.source.parked import readable_parked_table

if TYPE_CHECKING:
    from airflow.sdk import Context


class ParkRetryOperator(OutboxOperator):
    """Send parked records again, and the records held behind them, after their cause was removed.

    Records of a key keep their order, as with `harvest park retry`. A task that is repeated finds nothing parked, and
    succeeds. Returns the numbers `parked` (records that will be sent again), `held` (records behind them) and `waiting`
    (records that wait behind an earlier record that stays parked), and `behind`, the ids of those. Raises
    AirflowFailException for what another try would find again, else HarvestError.
    """

    template_fields: Sequence[str] = ("conn_id", "topic", "key", "ids")

    def __init__(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        ids: Sequence[int] | str | None = None,
        **arguments: Any,
    ) -> None:
        """Make the task. Without `topic`, `key` and `ids`, all parked records are meant; else those that meet each of
        them. All `ids` have to be parked; they may be a text of JSON."""
        super().__init__(**arguments)
        self.topic = topic
        self.key = key
        self.ids = ids

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002 - Airflow's
        """Put the records back, and return the numbers."""
        with self._open() as (config, table, connection):
            topic = _topic(self.topic)
            topics = None if topic is None else [topic]
            selection = ParkedSelection(ids=_numbers(self.ids), topics=topics, key=self.key)
            parked = readable_parked_table(connection, table, config)
            done = parked.retry(connection, selection, keep_order=config.parking != "skip")
        self.log.info(
            "%d parked records will be sent again, and %d held behind them; %d wait behind a record that stays parked",
            done.parked,
            done.held,
            done.waiting,
        )
        return {**asdict(done), "behind": list(done.behind)}


def _topic(text: str | None) -> str | None:
    """Return the text. Raises ConfigError for an empty one: a template that found nothing must not mean everything."""
    if text is None or text.strip():
        return text
    raise ConfigError("topic is empty", field="topic", next_step="name a topic, or leave it out to mean all records")


def _numbers(ids: Sequence[Any] | str | None) -> list[int] | None:
    try:
        found = json.loads(ids) if isinstance(ids, str) else ids
        return None if found is None else [int(each) for each in found]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"ids are no numbers: {str(ids)[:80]!r}", field="ids", next_step="give a list such as [4711, 4712]"
        ) from error
