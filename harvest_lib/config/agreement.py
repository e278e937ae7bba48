"""Checks for settings that contradict each other."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harvest_lib.config.durations import format_duration
from harvest_lib.config.kafka_settings import IN_FLIGHT, SESSION_TIMEOUT
from harvest_lib.config.problems import Problem
from harvest_lib.record import is_legal_topic

if TYPE_CHECKING:
    from harvest_lib.config.model import HarvestConfig


def disagreements(config: "HarvestConfig") -> list[Problem]:
    """Return the conflicts between settings that are each valid."""
    return [*_election_problems(config), *_session_problems(config), *_delivery_problems(config)]


def _election_problems(config: "HarvestConfig") -> Iterator[Problem]:
    if config.leadership == "solo":
        return
    if not config.leader_group_id.strip():
        yield Problem(
            path=("leader_group_id",),
            message="is missing: processes with the same name form a pool, which elects its leader",
            remedy="name the pool, for example `leaderGroupID: shop` in a file, or HARVEST_LEADER_GROUP_ID=shop; a "
            "process that is alone may have `leadership: solo`",
        )
    elif not is_legal_topic(config.leader_topic):
        remedy = "name the pool by a-z, A-Z, 0-9, `.`, `_` and `-` alone, or set `leaderTopic` to a legal topic"
        yield Problem(path=("leader_topic",), message="cannot be derived from `leaderGroupID`", remedy=remedy)


def _session_problems(config: "HarvestConfig") -> Iterator[Problem]:
    configured = config.base_kafka_config.milliseconds(SESSION_TIMEOUT)
    session, heartbeat = config.session_timeout_seconds, config.limits.heartbeat_timeout_seconds
    path = ("session_timeout_seconds",) if configured is None else ("base_kafka_config", SESSION_TIMEOUT)
    if configured is not None and configured != session:
        yield Problem(path=path, message="contradicts `sessionTimeout`", remedy="keep one of the two")
    if session <= heartbeat:
        yield Problem(
            path=path,
            message=f"is {format_duration(session)}, but must be more than `limits.heartbeatTimeout` "
            f"({format_duration(heartbeat)}): a leader that lost touch has to stop before another is elected",
            remedy="raise it, or lower `limits.heartbeatTimeout`",
        )


def _delivery_problems(config: "HarvestConfig") -> Iterator[Problem]:
    transactional, topic = config.delivery == "transactional", config.checkpoint_topic
    if transactional and config.leadership == "neli" and topic == config.leader_topic:
        message = "is `leaderTopic` too: heartbeats and checkpoints need a topic each"
        yield Problem(path=("checkpoint_topic",), message=message, remedy="name another, or remove it")
    if transactional and not is_legal_topic(topic):
        yield Problem(
            path=("checkpoint_topic",),
            message="cannot be derived from `leaderGroupID` and `subscription`: transactions need a name of their own",
            remedy="set `leaderGroupID` (also for `leadership: solo`), or `checkpointTopic` to a legal topic; or "
            "deliver without transactions: `delivery: barrier`",
        )
    if config.source == "mark" and config.shards > 1:
        message = f"is {config.shards}, but `mark` has one writer: its leader marks for all keys"
        yield Problem(path=("shards",), message=message, remedy="use `source: snapshot`, or 1")
    if config.delivery not in ("barrier", "auto") or config.source not in ("mark", "auto"):
        yield from _in_flight_problems(config)
    most = config.limits.max_in_flight_records
    if most is not None and most < config.shards:
        message = f"is {most}, less than `shards` ({config.shards}): a process may lead all, each with a record"
        remedy = "raise it, or remove it: batches have bounds of their own"
        yield Problem(path=("limits", "max_in_flight_records"), message=message, remedy=remedy)
    if config.columns is not None and config.source == "mark":
        message = "cannot be read by `mark`, which marks and deletes in goharvest's layout"
        yield Problem(path=("columns",), message=message, remedy="use `source: snapshot` or `transaction_id`")


def _in_flight_problems(config: "HarvestConfig") -> Iterator[Problem]:
    message = (
        f"must be 1 with source `{config.source}` and delivery `{config.delivery}`: behind a request that a broker "
        "refuses another may be taken, and what was refused would count as delivered"
    )
    for place in ("base_kafka_config", "producer_kafka_config"):
        if str(getattr(config, place).get(IN_FLIGHT, 1)).strip() != "1":
            yield Problem(path=(place, IN_FLIGHT), message=message, remedy="remove it")
