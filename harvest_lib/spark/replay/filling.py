"""Fills the topics of a new subscription with earlier records, by Spark. The subscription's harvester then continues.

    note that it is being filled ─► add the subscription: its snapshot ─► archive and outbox, up to that snapshot
        ─► parts by key, sorted by id, into the topics ─► note that it is filled ─► `harvest run` continues

Promises
- The subscription's topics have each record once, for readers of committed records. Records that the subscription's
  snapshot saw come from the replay, all later records from the subscription's harvester. The harvester does not begin
  before the replay has ended.
- A key's replayed records are in the order of their ids; later records follow in the order of their commits.
- A replay that ended early continues from its progress when it is run again.
- Retention does not drop rows that the replay has yet to read. Rows dropped earlier must be in the archive.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harvest_lib.archive import ArchiveFiles
from harvest_lib.archive.urls import shown
from harvest_lib.conninfo import parameters_of
from harvest_lib.errors import ArchiveError, CheckpointError, ConfigError, HarvestError, TopicMissing
from harvest_lib.kafka_client import client_settings, log_range, topic_partitions, translate
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.replays import OutboxReplay, Replays
from harvest_lib.outbox.segments import Segments
from harvest_lib.outbox.short_locks import exclusively
from harvest_lib.postgres.database import connect, in_statement
from harvest_lib.postgres.translation import translated
from harvest_lib.record import is_legal_topic
from harvest_lib.source import Selection, server_identity
from harvest_lib.spark.raised import SPARK_ERRORS
from harvest_lib.spark.replay.parts import RESULT, PartSettings, write_parts
from harvest_lib.spark.replay.progress import watched
from harvest_lib.subscriptions.admin import Subscriptions

_HOLD = "UPDATE {table} SET retention_hold = %(hold)s WHERE subscription = %(name)s"
_LOWEST_ID = -(2**63)
_PROGRESS_LASTS = timedelta(days=6)
"""How long a replay can be continued. By default Kafka deletes offsets of a group without members after 7 days."""
_ANSWER_SECONDS = 30.0
_COLUMNS = ("id", "kafka_topic", "kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The result of a replay. `records` is the number of its records, 0 if the subscription was `already_filled`."""

    subscription: str
    records: int
    parts: int
    seconds: float
    already_filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlace:
    """Where a replay reads and writes. `dsn` may have a password; `kafka` are the settings of a producer."""

    dsn: str = field(repr=False)
    kafka: Mapping[str, object] = field(repr=False)
    outbox: str = "outbox"
    archive: str | None = None
    without_dropped: bool = False
    """True if dropped records may be missing."""


def replay(
    spark: SparkSession,
    place: ReplayPlace,
    subscription: str,
    topics: Mapping[str, str],
    *,
    begun: Callable[[OutboxReplay], None] = lambda _: None,
    progress: Callable[[float], None] = lambda _: None,
) -> ReplayReport:
    """Fill a subscription's topics. `topics` maps each original topic to the new topic for its records.

    The role needs the rights of the outbox's owner. The topics must exist and be empty. `begun` is called with the
    replay before Spark starts, `progress` each second with an estimate of the share that is done. A call after an
    interrupted call continues the replay.

    Raises ConfigError, CheckpointError, TopicMissing, ArchiveError, RecordError, or another HarvestError.
    """
    began = datetime.now(UTC)
    outbox = OutboxTable.parse(place.outbox)
    with connect(place.dsn) as connection:
        _require_all(connection, outbox.placed(connection), place)
        found = _begun(connection, outbox, place, subscription, topics)
        highest_id = _highest_id(connection, outbox)
    begun(found)
    if found.filled_at is not None:
        return ReplayReport(subscription=subscription, records=0, parts=found.parts, seconds=0.0, already_filled=True)
    settings = PartSettings(
        kafka=dict(place.kafka),
        topics=dict(found.topics),
        group=f"harvest-replay-{found.subscription}-{found.sender}",
        progress_topic=progress_topic(place.kafka, found),
        sender=found.sender,
    )
    with watched(settings, parts=found.parts, highest_id=highest_id, tell=progress):
        done = _fill(spark, place, found, settings)
    with connect(place.dsn) as connection, translated(), connection.transaction():
        placed = outbox.placed(connection)
        Replays(placed).filled(connection, found)
        _hold(connection, placed, subscription, None)
    records = sum(row["records"] for row in done)
    seconds = (datetime.now(UTC) - began).total_seconds()
    return ReplayReport(subscription=subscription, records=records, parts=found.parts, seconds=seconds)


# -- notes in Postgres


def _begun(
    connection: psycopg.Connection[Any],
    outbox: OutboxTable,
    place: ReplayPlace,
    subscription: str,
    topics: Mapping[str, str],
) -> OutboxReplay:
    """Return the replay that is saved in Postgres; save a new replay if there is none."""
    placed = outbox.placed(connection)
    replays = Replays(placed)
    subscriptions = Subscriptions(connection, placed, Selection(table=placed.identifier))
    found = replays.get(connection, subscription)
    if found is None:
        parts = _parts(place.kafka, topics)
        if subscriptions.shards(subscription):
            raise CheckpointError(
                f"there is a subscription {subscription!r} already",
                evidence=f"it has rows in {placed.subscriptions}, and was not begun by a replay",
                next_step="name another, or remove it: `harvest subscriptions remove`",
            )
        replays.create(connection)
        replays.begin(connection, subscription, topics, parts)
        found = replays.get(connection, subscription)
    assert found is not None  # noqa: S101 - it was made just now
    if dict(found.topics) != dict(topics):
        raise ConfigError(
            f"the replay {subscription!r} was begun with other topics: {json.dumps(dict(found.topics))}",
            field="--topic",
            next_step=f"name the same topics, or give it up: `harvest subscriptions remove {subscription}`",
        )
    if found.filled_at is None and datetime.now(UTC) - found.begun_at > _PROGRESS_LASTS:
        raise CheckpointError(
            f"the replay {subscription!r} is too old to go on",
            evidence=f"it was begun at {found.begun_at:%Y-%m-%d %H:%M}; Kafka forgets how far it was after some days",
            next_step=f"`harvest subscriptions remove {subscription}`, empty its topics, and begin again",
        )
    if found.snapshot is None:
        with exclusively(connection, placed):  # nothing is dropped before retention knows the rows to keep
            if not subscriptions.shards(subscription):
                subscriptions.add(subscription, start="now", topics=sorted(topics))
            _hold(connection, placed, subscription, _LOWEST_ID)
            _require_all(connection, placed, place)
            (shard,) = subscriptions.get(subscription)
            system = server_identity.place(connection).system
            replays.anchor(connection, subscription, f"{shard.low_watermark}@{system}")
        found = replays.get(connection, subscription)
        assert found is not None  # noqa: S101 - as above
    return found


def _require_all(connection: psycopg.Connection[Any], outbox: OutboxTable, place: ReplayPlace) -> None:
    """Raise ConfigError if segments were dropped and no archive is named, ArchiveError if the archive lacks
    segments."""
    outbox.check_native(connection)
    there = [each for each in Segments(outbox).read(connection) if not each.detaching]
    if place.without_dropped or not there or there[0].lower is None:
        return
    if place.archive is None:
        raise ConfigError(
            f"records with ids below {there[0].lower} were dropped from {outbox}",
            field="--archive",
            next_step="name the archive that has them, or add --without-dropped to replay the rest",
        )
    archived = ArchiveFiles(place.archive).manifests()
    if not archived or archived[0].lower is not None:
        begins = f"begins with the id {archived[0].lower}" if archived else "has no segment"
        raise ArchiveError(
            f"records were dropped from {outbox} before its archive began",
            evidence=f"{shown(place.archive)} {begins}, the outbox with {there[0].lower}",
            next_step="name the archive that has them, or add --without-dropped to replay the rest",
        )


def _highest_id(connection: psycopg.Connection[Any], outbox: OutboxTable) -> int:
    with translated():
        row = connection.execute(sql.SQL("SELECT max(id) FROM {}").format(outbox.identifier)).fetchone()
    return int(row[0]) if row is not None and row[0] is not None else 0


def _hold(connection: psycopg.Connection[Any], outbox: OutboxTable, subscription: str, hold: int | None) -> None:
    with translated():
        statement = sql.SQL(_HOLD).format(table=in_statement(outbox.subscriptions.identifier))
        connection.execute(statement, {"name": subscription, "hold": hold})


# -- topics in Kafka


def _parts(kafka: Mapping[str, object], topics: Mapping[str, str]) -> int:
    """Return the number of parts: the largest partition count of the new topics. All new topics must be empty."""
    if not topics:
        raise ConfigError("no topic was named", field="--topic", next_step="name what is replayed: orders=orders.v2")
    for one in (*topics, *topics.values()):
        if not is_legal_topic(one):
            raise ConfigError(f"{one[:80]!r} cannot name a topic", field="--topic", next_step="correct it")
    there = topic_partitions(kafka)
    if missing := sorted(set(topics.values()) - there.keys()):
        raise TopicMissing(
            f"there is no topic {', '.join(map(repr, missing))}",
            evidence=f"the brokers know {len(there)} topics",
            next_step="create it, with as many partitions as the original topic",
        )
    if full := [topic for topic in sorted(set(topics.values())) if not _is_empty(kafka, topic, there[topic])]:
        raise ConfigError(
            f"the topic {full[0]!r} is not empty: replayed records would mix with the records in it",
            field="--topic",
            next_step="name an empty topic, or delete the records of this topic",
        )
    return max(there[topic] for topic in topics.values())


def _is_empty(kafka: Mapping[str, object], topic: str, partitions: int) -> bool:
    consumer = Consumer(client_settings(kafka, **{"group.id": "harvest-replay"}))
    try:
        ends = [log_range(consumer, topic, each, timeout_seconds=_ANSWER_SECONDS) for each in range(partitions)]
    except KafkaException as error:
        raise translate(error.args[0], settings=kafka) from error
    finally:
        consumer.close()
    return all(low == high for low, high in ends)


def progress_topic(kafka: Mapping[str, object], replayed: OutboxReplay) -> str:
    """Return a topic with a partition for the progress of each part. Raises CheckpointError without such a topic."""
    there = topic_partitions(kafka)
    fitting = [topic for topic in sorted(set(replayed.topics.values())) if there.get(topic, 0) >= replayed.parts]
    if not fitting:
        raise CheckpointError(
            f"no topic of the replay {replayed.subscription!r} has the {replayed.parts} partitions that it began with",
            evidence=", ".join(f"{topic}: {there.get(topic, 0)}" for topic in sorted(set(replayed.topics.values()))),
            next_step=f"`harvest subscriptions remove {replayed.subscription}`, and begin again with other topics",
        )
    return fitting[0]


# -- work of Spark


def _fill(spark: SparkSession, place: ReplayPlace, found: OutboxReplay, settings: PartSettings) -> list[Any]:
    try:
        rows = _rows(spark, place, found)
        return rows.mapInArrow(partial(write_parts, settings), RESULT).collect()
    except SPARK_ERRORS as error:
        raise _failure(error) from error


def _rows(spark: SparkSession, place: ReplayPlace, found: OutboxReplay) -> DataFrame:
    """Return the snapshot's rows of the replayed topics, partitioned by part, and sorted by id within a part."""
    from harvest_lib.spark.data_source import register  # noqa: PLC0415 - refuses other versions as it is loaded

    register(spark)
    given = parameters_of(place.dsn)
    secret = {"password": given.pop("password")} if "password" in given else {}
    options = {"dsn": make_conninfo("", **given), "outbox": place.outbox, "snapshot": found.snapshot, **secret}
    options |= {"archive": place.archive} if place.archive else {}
    part = F.expr(f"CAST(pmod(crc32(CAST(kafka_key AS binary)), {found.parts}) AS int)").alias("part")
    return (
        spark.read.format("outbox")
        .options(**options)
        .load()
        .where(F.col("kafka_topic").isin(*found.topics))
        .select(part, *_COLUMNS)
        .repartition(found.parts, "part")
        .sortWithinPartitions("part", "id")
    )


def _failure(error: Exception) -> HarvestError:
    said = str(error)
    lines = [line for line in said.splitlines() if "harvest_lib.errors." in line or line.startswith("  evidence:")]
    cause = lines[0].split("harvest_lib.errors.", 1)[1] if lines else said.splitlines()[0]
    return CheckpointError(
        "the replay ended early",
        evidence=cause[:500],
        next_step="mend that, and run it again: it goes on where it was",
    )
