"""The verdict on an audit, for operators and sensors, and the condition of a sensor that waits for an audit."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from harvest_lib.airflow.awaited import START, NotInTime, time_of
from harvest_lib.audit.last_audits import last_audits, rows_query
from harvest_lib.audit.summary import AuditSummary
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import ConfigError, HarvestError
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedSelection
from harvest_lib.postgres.database import connect, server_time
from harvest_lib.postgres.translation import translated
from harvest_lib.source.parked import readable_parked_table

_MEANINGS = {
    "lost": ("committed, and not in Kafka", "lost"),
    "duplicates_adjacent": ("sent twice in a row by one term", "duplicates"),
    "duplicates_separated": ("sent twice by one term, with other records of their key between", "duplicates"),
    "reordered": ("in Kafka in another order than their key's records were committed", "reorderings"),
    "unknown": ("in Kafka, and never committed", "unknown"),
    "other_contents": ("in Kafka with another value than committed", "unknown"),
    "keys_with_gaps": ("keys that are not complete and in order", ""),
}
"""Names of the counts that have to be zero. Each is mapped to the meaning of its number, and to the table that lists
the records; keys have no table."""

MAX_BACKLOG_AGE = timedelta(minutes=5)
"""The longest time for which a record may wait when an audit reads the outbox."""


class AuditFailed(HarvestError):
    """The audit found records that were lost, reordered, repeated or never committed: its tables list the records."""


class NotDelivered(HarvestError):
    """Committed records are not in Kafka: they wait too long, or they are parked. A later audit may find them there."""


def named_topics(topics: Sequence[str] | str) -> list[str]:
    """Return the topics as a list. Raises ConfigError if there is none."""
    found = [topics] if isinstance(topics, str) else list(topics)
    if not any(found):
        raise ConfigError("no topic is named", field="topics", next_step='name the topics: topics=["orders"]')
    return found


def require_passed(summary: AuditSummary, *, allow_empty: bool) -> None:
    """Raise AuditFailed with all numbers that are wrong. Raise NothingChecked for an audit without a committed record,
    unless `allow_empty`."""
    if wrong := {name: getattr(summary, name) for name in summary.anomalies}:
        tables = dict.fromkeys(filter(None, (_MEANINGS[name][1] for name in wrong)))
        raise AuditFailed(
            f"the audit found {', '.join(f'{count:,} {name}' for name, count in wrong.items())}",
            evidence=f"{'; '.join(f'{name}: {_MEANINGS[name][0]}' for name in wrong)}; of {summary.committed:,} "
            f"committed, with {summary.records:,} in Kafka",
            next_step="; ".join(rows_query([summary.audit_id], table) for table in tables),
        )
    if summary.is_empty and not allow_empty:
        raise summary.nothing_checked("set allow_empty=True")


def require_delivered(
    config: HarvestConfig, summary: AuditSummary, topics: Sequence[str], max_backlog_age: float
) -> None:
    """Raise NotDelivered if a record waited for `max_backlog_age` seconds when the audit read the outbox, or if a
    record of the topics is parked now. Raises HarvestError if the parked records cannot be read."""
    if summary.backlog_records and summary.backlog_age_seconds >= max_backlog_age:
        raise NotDelivered(
            f"{summary.backlog_records:,} committed records are not delivered",
            evidence=f"the oldest waited for {summary.backlog_age_seconds:,.1f} s at audit {summary.audit_id}",
            next_step="check with `harvest status` who leads; or raise max_backlog_age",
        )
    table = OutboxTable.parse(config.outbox_table)
    with connect(config.data_source.conninfo()) as connection:
        parked = readable_parked_table(connection, table, config)
        if not parked.summary(connection).parked:  # raises if this role may not read the table
            return
        counts = {topic: parked.counts(connection, ParkedSelection(topics=[topic])) for topic in topics}
    if found := {topic: each.parked + each.held for topic, each in counts.items() if each and each.parked + each.held}:
        raise NotDelivered(
            f"{sum(found.values()):,} committed records are parked, so they are not delivered",
            evidence=", ".join(f"{count:,} of {topic}" for topic, count in found.items()),
            next_step="see the reasons with `harvest park list`; remove the cause, then `harvest park retry`",
        )


def numbers_of(summary: AuditSummary) -> dict[str, Any]:
    """Return the numbers for XCom and for asset events: a mapping that JSON can hold, the time in ISO format, and
    `proved`, the committed records that did not wait."""
    proved = summary.committed - summary.backlog_records
    return {**asdict(summary), "at": summary.at.isoformat(), "proved": proved}


def page_of(summary: AuditSummary) -> str:
    """Return the numbers as lines for a log."""
    numbers = asdict(summary)
    width = max(map(len, numbers))
    return "\n".join(f"  {name:<{width}}  {_shown(value)}" for name, value in numbers.items())


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:,.1f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReading:
    """A reading of the last audit. `summary` is None if there is none. `trouble` says what is not delivered."""

    is_done: bool
    summary: AuditSummary | None
    trouble: str = ""

    def as_xcom(self) -> dict[str, str]:
        """Return the audit's numbers as texts."""
        return {} if self.summary is None else {name: str(value) for name, value in numbers_of(self.summary).items()}

    def __str__(self) -> str:
        if self.summary is None:
            return "there is no audit of these topics"
        last = f"the last audit is {self.summary.audit_id}, of {self.summary.at.isoformat(' ', 'seconds')}"
        return f"{last}: {self.trouble}" if self.trouble else last


class AwaitedAudit:
    """Reads the last audit of an outbox until it is later than a time.

    `since` is `start`, for an audit that read the committed records after the first reading; or a time in ISO format.
    A time without a zone is in UTC. All times are of Postgres's clock.
    """

    def __init__(
        self,
        *,
        topics: Sequence[str],
        since: str,
        prefix: str = "",
        allow_empty: bool = False,
        max_backlog_age: float = MAX_BACKLOG_AGE.total_seconds(),
    ) -> None:
        """`prefix` is the beginning of the ids of the audits that count. Raises ConfigError if `since` is no time, or
        if there is no topic."""
        self._topics, self._prefix, self._allow_empty = named_topics(topics), prefix, allow_empty
        self._max_backlog_age = max_backlog_age
        self._since = None if since == START else time_of(since, "since", START)

    @property
    def condition(self) -> Mapping[str, Any]:
        """The arguments that make an object with this condition; after the first reading, `since` is its time."""
        return {
            "topics": self._topics,
            "since": START if self._since is None else self._since.isoformat(),
            "prefix": self._prefix,
            "allow_empty": self._allow_empty,
            "max_backlog_age": self._max_backlog_age,
        }

    def read(self, config: HarvestConfig) -> AuditReading:
        """Read the last audit. Raises AuditFailed or NothingChecked if the audit did not pass, or a HarvestError;
        DatabaseUnavailable may be temporary."""
        table = OutboxTable.parse(config.outbox_table)
        with connect(config.data_source.conninfo()) as connection:
            if self._since is None:
                with translated():
                    self._since = datetime.fromtimestamp(server_time(connection), UTC)
            found = last_audits(connection, table, self._topics, prefix=self._prefix)
        last = found[0] if found else None
        is_done = last is not None and last.at >= self._since
        trouble = ""
        if is_done and last is not None:
            require_passed(last, allow_empty=self._allow_empty)
            try:
                require_delivered(config, last, self._topics, self._max_backlog_age)
            except NotDelivered as error:
                trouble = str(error)
        return AuditReading(is_done=is_done and not trouble, summary=last, trouble=trouble)

    def late(self, last: str) -> NotInTime:
        """Return the error for an outbox whose last reading was `last`."""
        return NotInTime(
            f"no audit of {', '.join(self._topics)} has passed in the given time",
            evidence=f"{last}; one since {self.condition['since']} is awaited",
            next_step="check the DAG or job that audits, and that its audit_id and topics are those that this sensor "
            "names; or raise the sensor's timeout",
        )
