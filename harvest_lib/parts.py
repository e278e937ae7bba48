"""The parts that a configuration chooses."""

from confluent_kafka import Consumer, Producer

from harvest_lib.config import HarvestConfig
from harvest_lib.delivery import AtLeastOnce, Delivery, Lanes, LaneSettings, Pipelined, Topics
from harvest_lib.kafka_client import KafkaConsumerProvider, KafkaProducerProvider
from harvest_lib.leadership import Leadership, Neli, Solo
from harvest_lib.leadership.neli import NeliSettings
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
    consumer_provider: KafkaConsumerProvider = Consumer,  # noqa: ARG001
    producer_provider: KafkaProducerProvider = Producer,  # noqa: ARG001
) -> Leadership:
    """Return the way of electing a leader that `leadership` names."""
    if config.leadership == "solo":
        return Solo()
    limits = config.limits
    settings = NeliSettings(
        topic=config.leader_topic,
        group_id=config.leader_group_id,
        create_topic=config.create_leader_topic,
        heartbeat_timeout_seconds=limits.heartbeat_timeout_seconds,
        min_poll_interval_seconds=limits.min_poll_interval_seconds,
        session_timeout_seconds=config.session_timeout_seconds,
        # By then the loop has let go, or all that was in the producer's queue has expired.
        quiesce_timeout_seconds=max(2 * limits.drain_interval_seconds, config.delivery_timeout_seconds + 1),
    )
    return Neli(settings, {"client.id": config.name, **config.kafka_settings(for_producer=False)})
