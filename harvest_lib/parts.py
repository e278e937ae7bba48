"""The parts that a configuration chooses."""

from typing import assert_never

from confluent_kafka import Consumer, Producer

from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import AtLeastOnce, Delivery, Lanes, LaneSettings, Pipelined, Topics
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Leadership, Neli, PostgresLeadership, Solo
from harvest_lib.leadership.neli import NeliSettings
from harvest_lib.leadership.postgres import PostgresLeadershipSettings
from harvest_lib.outbox import OutboxTable
from harvest_lib.source import MarkSource, Source


def make_source(config: HarvestConfig, table: OutboxTable) -> Source:
    """Return the mark source on `table`, with a place for parked records unless the policy is to stop."""
    parked = None if config.parking == "stop" else table.parked.identifier
    return MarkSource(config.data_source.conninfo(), table.identifier, parked)


def make_delivery(config: HarvestConfig, topics: Topics, producer_provider: KafkaProducerProvider) -> Delivery:
    """Return `sendConcurrency` lanes of the kind that `delivery` names."""
    settings = LaneSettings(
        kafka=config.kafka_settings(for_producer=True),
        delivery_timeout_seconds=config.delivery_timeout_seconds,
        record_header=config.record_header,
        send_buffer=config.limits.send_buffer,
        producer_provider=producer_provider,
    )
    kind = Pipelined if config.delivery == "pipelined" else AtLeastOnce
    lanes = [kind(settings, topics) for _ in range(config.limits.send_concurrency)]
    return lanes[0] if len(lanes) == 1 else Lanes(lanes)


def make_leadership(
    config: HarvestConfig,
    consumer_provider: KafkaConsumerProvider = Consumer,
    producer_provider: KafkaProducerProvider = Producer,
) -> Leadership:
    """Return the way of electing a leader that `leadership` names."""
    limits = config.limits
    # By then the loop has let go, or all that was in the producer's queue has expired.
    quiesce_timeout_seconds = max(2 * limits.drain_interval_seconds, config.delivery_timeout_seconds + 1)
    match config.leadership:
        case "solo":
            return Solo(config.shards)
        case "postgres":
            return PostgresLeadership(
                PostgresLeadershipSettings(
                    group=config.leader_group_id,
                    shards=config.shards,
                    heartbeat_timeout_seconds=limits.heartbeat_timeout_seconds,
                    min_poll_interval_seconds=limits.min_poll_interval_seconds,
                    session_timeout_seconds=config.session_timeout_seconds,
                    quiesce_timeout_seconds=quiesce_timeout_seconds,
                    io_error_backoff_seconds=limits.io_error_backoff_seconds,
                ),
                config.data_source.conninfo(),
            )
        case "neli":
            return Neli(
                NeliSettings(
                    topic=config.leader_topic,
                    group_id=config.leader_group_id,
                    shards=config.shards,
                    create_topic=config.create_leader_topic,
                    heartbeat_timeout_seconds=limits.heartbeat_timeout_seconds,
                    min_poll_interval_seconds=limits.min_poll_interval_seconds,
                    poll_duration_seconds=limits.poll_duration_seconds,
                    session_timeout_seconds=config.session_timeout_seconds,
                    quiesce_timeout_seconds=quiesce_timeout_seconds,
                ),
                {"client.id": config.name, **config.kafka_settings(for_producer=False)},
                consumer_provider=consumer_provider,
                producer_provider=producer_provider,
            )
        case other:
            assert_never(other)
