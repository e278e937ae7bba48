"""The condition that a sensor waits for: the backlog is empty, or the records of a time are delivered."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import ConfigError, DatabaseAccessDenied, HarvestError
from harvest_lib.harvester.draining import delivered_since
from harvest_lib.harvester.status import StatusReader
from harvest_lib.harvester.watermark import Watermark
from harvest_lib.postgres.database import connect, server_time
from harvest_lib.subscriptions.backlog import Backlog

EMPTY, START = "empty", "start"


class NotInTime(HarvestError):
    """The condition of a sensor did not hold in the given time: the next step says what to check."""


class Reading(Protocol):
    """A reading of an outbox. Its text is for the log."""

    @property
    def is_done(self) -> bool:
        """True if the outbox is as wanted."""

    def as_xcom(self) -> dict[str, str]:
        """Return the reading as texts."""


class Awaiting(Protocol):
    """Reads an outbox until it is as a sensor wants it."""

    @property
    def condition(self) -> Mapping[str, Any]:
        """The arguments that make an object with this condition in another process."""

    def read(self, config: HarvestConfig) -> Reading:
        """Read the outbox. Raises HarvestError; DatabaseUnavailable may be temporary."""

    def late(self, last: str) -> NotInTime:
        """Return the error for an outbox whose last reading was `last`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReading:
    """A reading of the delivery. `delivered_until` is the time before which every committed record is delivered, None
    if it is unknown. A parked record is not delivered, and `waiting` does not count it."""

    is_done: bool
    waiting: Backlog
    delivered_until: datetime | None
    has_parked: bool = False

    def as_xcom(self) -> dict[str, str]:
        """Return the time and the backlog as texts."""
        until = "" if self.delivered_until is None else self.delivered_until.isoformat()
        return {"delivered_until": until, "waiting": str(self.waiting.records)}

    def __str__(self) -> str:
        until = "unknown" if self.delivered_until is None else self.delivered_until.isoformat(" ", "seconds")
        parked = "; records are parked" if self.has_parked else ""
        age = f"{self.waiting.age_seconds:.1f} s"
        return f"{self.waiting} wait, the oldest for {age}; all are delivered until: {until}{parked}"


class AwaitedDelivery:
    """Reads an outbox until it is as wanted.

    `until` is `empty` for an empty backlog; `start` for the delivery of every record that was committed before the
    first reading; or a time in ISO format, for the delivery of every record that was committed before. A time without
    a zone is in UTC. All times are of Postgres's clock.
    """

    def __init__(self, *, until: str) -> None:
        """Raises ConfigError if `until` is no such text."""
        self.condition = {"until": until}
        self._is_empty = until == EMPTY
        self._until: float | None = (
            None if until in (EMPTY, START) else time_of(until, "until", f"{START}, {EMPTY}").timestamp()
        )
        self._watermark = Watermark()

    def read(self, config: HarvestConfig) -> DeliveryReading:
        """Read the outbox. Raises HarvestError; DatabaseUnavailable may be temporary."""
        with connect(config.data_source.conninfo()) as connection:
            progress = self._watermark.read(connection, config)
        until = progress.delivered_until
        if self._is_empty:
            is_done = progress.waiting.is_empty
        elif self._watermark.samples:
            if self._until is None:
                self._until = self._watermark.samples[0].at
            is_done = until is not None and until >= self._until
        else:
            raise DatabaseAccessDenied(
                "it is not known which records are delivered",
                evidence=f"this role may not read {config.outbox_table}_parked or {config.outbox_table}_parked_ids, "
                "whose records are not delivered",
                next_step=f"as the table's owner: GRANT SELECT ON {config.outbox_table}_parked, "
                f"{config.outbox_table}_parked_ids TO the connection's role; or wait until=`empty`",
            )
        return DeliveryReading(
            is_done=is_done,
            waiting=progress.waiting,
            delivered_until=None if until is None else datetime.fromtimestamp(until, UTC),
            has_parked=progress.has_parked,
        )

    def late(self, last: str) -> NotInTime:
        """Return the error for an outbox whose last reading was `last`."""
        return NotInTime(
            "the outbox is not delivered in the given time",
            evidence=last,
            next_step="check with `harvest status` who leads, and with `harvest park list` which records are parked; "
            "or raise the sensor's timeout",
        )


class AwaitedLeader:
    """Reads an outbox until its leader has delivered what was there at `began`, in Unix seconds by Postgres's clock.
    Parked records do not count."""

    def __init__(self, *, began: float) -> None:
        self.condition = {"began": began}
        self._began = began

    def read(self, config: HarvestConfig) -> DeliveryReading:
        """Read the outbox. Raises HarvestError; DatabaseUnavailable may be temporary."""
        with connect(config.data_source.conninfo()) as connection:
            seconds = server_time(connection) - self._began
            waiting = StatusReader(connection, config).waiting()
        return DeliveryReading(is_done=delivered_since(waiting, seconds), waiting=waiting, delivered_until=None)

    def late(self, last: str) -> NotInTime:
        """Return the error for an outbox whose last reading was `last`."""
        return NotInTime(
            "the leader has not delivered the outbox", evidence=last, next_step="`harvest status` names the leader"
        )


def time_of(text: str, field: str, words: str) -> datetime:
    """Return the time of a text in ISO format, in UTC if it has no zone. Raises ConfigError, which names the argument
    `field` and the `words` that it takes too."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text[:80]!r} is no time", field=field, next_step=f"use {words} or a time in ISO format"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
