"""Sensors and a condition by which delivered records start runs: each N records, a time window, every materialization.

The sensors read the materializations of a topic, which `dagster_harvest.topic_reports` writes, and their cursors are
positions in Dagster's event log or in time. So a record counts once, whether the harvester, the code server or
Dagster's daemon is restarted, and a tick that is repeated requests the same runs, which Dagster starts once.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from dagster_harvest.settings import OutboxSettings
from dagster_harvest.topic_ends import OFFSETS, passed
from dagster_harvest.topic_reports import DELIVERED_UNTIL, OUTBOX, ROW_COUNT
from harvest_lib.errors import ConfigError

RECORDS_TAG = "harvest/records"
"""The tag of a run that `delivered_sensor` requests: the first and the last of its records, such as `2001-3000`. The
count begins with the first tick of the sensor."""
_EVENTS_READ = 200
"""The largest number of materializations that a tick reads. The next tick reads the rest."""
_MOST_REQUESTS = 50
"""The largest number of runs that a tick requests. The next tick requests the rest."""
_KEPT = 20
"""Number of counted events in the cursor. Events of two writers may appear in another order than their ids: the
next tick also counts an event whose id lies between these ids."""


def on_delivery(settings: OutboxSettings) -> "dg.AutomationCondition[dg.AssetKey]":
    """Return the condition of an asset that is requested for each materialization of the outbox's topics.

    With `eager()`, the end of a run resets what was delivered while it ran, and the asset waits for the next delivery.
    With this condition only a request resets a delivery, and another run follows. Other dependencies of the asset do
    not count: add `| dg.AutomationCondition.eager()` if these matter.
    """
    condition = dg.AutomationCondition
    topics = dg.AssetSelection.assets(*settings.topic_keys)
    # Dagster compares the times of a delivery and a request within a tick only if neither is part of an AND or an OR.
    delivered = condition.any_deps_match(condition.newly_updated()).allow(topics).since(condition.newly_requested())
    return (
        condition.in_latest_time_window()
        & delivered
        & ~condition.any_deps_missing()
        & ~condition.any_deps_in_progress()
        & ~condition.in_progress()
    ).with_label("on_delivery")


def delivered_sensor(
    settings: OutboxSettings,
    *,
    topic: str,
    every_records: int,
    job: Any = None,
    target: Any = None,
    name: str | None = None,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that requests a run of `job`, or of the assets `target`, for each `every_records` records that
    are delivered to a topic.

    The sensor counts records of materializations after its first tick. Records up to the next multiple wait in its
    cursor. A harvester outside Dagster counts offsets, which include records of other producers and markers of
    transactions. The default of `name` is `<outbox>_<topic>_each_<every_records>`. Raises ConfigError for a topic that
    the outbox has not, and for a number below 1.
    """
    key = _key_of(settings, topic)
    if every_records < 1:
        raise ConfigError(
            f"every_records is {every_records}", field="every_records", next_step="state a number from 1 on"
        )

    @dg.sensor(
        name=name or _named(f"{settings.name}_{topic}_each_{every_records}"),
        job=job,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Requests a run for each {every_records:,} records that {settings.name} delivers to {topic}.",
    )
    def delivered(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _CountTick(context, key, every_records).result()

    return delivered


class _CountTick:
    """A tick. The cursor has the id of the last event before the first tick (`begun`), the ids of the last counted
    events (`seen`), the number of counted records (`records`) and the number of requested runs (`runs`). The keys of
    runs begin with `begun`, so that a cursor that was reset requests new runs."""

    def __init__(self, context: dg.SensorEvaluationContext, key: dg.AssetKey, every: int) -> None:
        self._instance = context.instance
        self._key = key
        self._every = every
        self._is_first = context.cursor is None
        self._state: dict[str, Any] = json.loads(context.cursor) if context.cursor else self._begun()

    def result(self) -> dg.SensorResult:
        state = self._state
        for record in [] if self._is_first else self._after(state["seen"]):
            state["seen"] = sorted([*state["seen"], record.storage_id])[-_KEPT:]
            state["records"] += _records_of(record)
        requests: list[dg.RunRequest] = []
        while (last := (state["runs"] + 1) * self._every) <= state["records"] and len(requests) < _MOST_REQUESTS:
            records = f"{last - self._every + 1}-{last}"
            requests.append(dg.RunRequest(run_key=f"{state['begun']}:{records}", tags={RECORDS_TAG: records}))
            state["runs"] += 1
        rest = state["records"] - state["runs"] * self._every
        words = None if requests else f"{rest:,} of {self._every:,} records"
        return dg.SensorResult(run_requests=requests, skip_reason=words, cursor=json.dumps(state))

    def _begun(self) -> dict[str, Any]:
        found = self._instance.fetch_materializations(self._key, limit=1).records
        newest = found[0].storage_id if found else 0
        return {"begun": newest, "seen": [newest], "records": 0, "runs": 0}

    def _after(self, seen: Sequence[int]) -> Sequence[dg.EventLogRecord]:
        """Return the next events that are not counted."""
        records_filter = dg.AssetRecordsFilter(self._key, after_storage_id=min(seen))
        found = self._instance.fetch_materializations(records_filter, limit=_EVENTS_READ, ascending=True).records
        return [record for record in found if record.storage_id not in seen]


def delivered_before(
    settings: OutboxSettings,
    *,
    partitions: dg.TimeWindowPartitionsDefinition,
    job: Any = None,
    target: Any = None,
    margin_seconds: float = 0.0,
    name: str | None = None,
    minimum_interval_seconds: int = 60,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that requests each partition, as of an hour, once every record that was committed before the end
    of the partition is delivered.

    The sensor reads `delivered_until` of the outbox's topics, and begins with the partition that is complete next. Use
    `margin_seconds` if partitions go by a time that precedes the commit, such as the time of an INSERT: the margin is
    the longest duration of a writer's transaction. The default of `name` is `<outbox>_delivered_before`.
    """

    @dg.sensor(
        name=name or f"{settings.name}_delivered_before",
        job=job,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Requests a partition when {settings.name} has delivered what was committed before its end.",
    )
    def before(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        until = delivered_until(context.instance, settings)
        if until is None:
            return dg.SensorResult(skip_reason="delivered_until is unknown", cursor=context.cursor)
        until -= timedelta(seconds=margin_seconds)
        begun = datetime.fromisoformat(context.cursor) if context.cursor else until
        complete = _complete(partitions, begun, until)
        return dg.SensorResult(
            run_requests=[dg.RunRequest(run_key=key, partition_key=key) for key in complete],
            skip_reason=None if complete else f"delivered until {until.isoformat()}",
            cursor=max([begun, *complete.values()]).isoformat(),
        )

    return before


def _complete(
    partitions: dg.TimeWindowPartitionsDefinition, begun: datetime, until: datetime
) -> Mapping[str, datetime]:
    """Return the partitions that end after `begun` and not after `until`, in order, with their ends."""
    found: dict[str, datetime] = {}
    for key in reversed(partitions.get_partition_keys(current_time=until)):
        end = partitions.time_window_for_partition_key(key).end
        if end <= begun:
            break
        found[key] = end
    return {key: found[key] for key in reversed(found) if found[key] <= until}


def delivered_until(instance: dg.DagsterInstance, settings: OutboxSettings) -> datetime | None:
    """Return the time before which every record that was committed to this outbox is delivered, as the latest events of
    the topics state it; None if it is unknown. Events of other outboxes that fill the topics do not count."""
    ours = dg.MetadataValue.text(settings.name)
    found = [
        value.value
        for key in settings.topic_keys
        for metadata in _latest(instance, key)
        if metadata.get(OUTBOX) == ours
        and isinstance(value := metadata.get(DELIVERED_UNTIL), dg.TimestampMetadataValue)
    ]
    return datetime.fromtimestamp(max(found), UTC) if found else None


def _latest(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[Any]:
    written = [each.asset_materialization for each in instance.fetch_materializations(key, limit=3).records]
    observed = [each.asset_observation for each in instance.fetch_observations(key, limit=3).records]
    return [each.metadata for each in (*written, *observed) if each is not None]


def _records_of(record: dg.EventLogRecord) -> int:
    """Return the number of records of a materialization; without it, the number of offsets; else 0."""
    metadata: Any = record.asset_materialization.metadata if record.asset_materialization is not None else {}
    if (count := metadata.get(ROW_COUNT)) is not None:
        return int(count.value)
    return passed(metadata[OFFSETS].value) if OFFSETS in metadata else 0


def _key_of(settings: OutboxSettings, topic: str) -> dg.AssetKey:
    if topic not in settings.topics:
        raise ConfigError(
            f"the outbox {settings.name!r} has no topic {topic!r}: its topics are {', '.join(settings.topics)}",
            field="topic",
            next_step="correct the topic, or add it to the outbox's `topics`",
        )
    return settings.asset_keys.make("topic", name=settings.name, topic=topic)


def _named(text: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in text)
