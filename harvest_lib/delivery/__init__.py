"""Delivery of records to Kafka."""

from harvest_lib.delivery.alternating import AlternatingProducers, exactly_once
from harvest_lib.delivery.at_least_once import AtLeastOnce, LaneSettings
from harvest_lib.delivery.batch_protocol import (
    BatchCommitted,
    BatchDelivery,
    BatchDeliverySettings,
    BatchFailed,
    BatchFenced,
    BatchOutcome,
)
from harvest_lib.delivery.batches import PipelinedBatches
from harvest_lib.delivery.lanes import Lanes
from harvest_lib.delivery.pipelined import Pipelined
from harvest_lib.delivery.protocol import Delivery, Failure, Reports
from harvest_lib.delivery.sequenced import Sequenced, acknowledge_again
from harvest_lib.delivery.topics import Topics
from harvest_lib.delivery.transactional import CheckpointPlace, Transactional

__all__ = [
    "AlternatingProducers",
    "AtLeastOnce",
    "BatchCommitted",
    "BatchDelivery",
    "BatchDeliverySettings",
    "BatchFailed",
    "BatchFenced",
    "BatchOutcome",
    "CheckpointPlace",
    "Delivery",
    "Failure",
    "LaneSettings",
    "Lanes",
    "Pipelined",
    "PipelinedBatches",
    "Reports",
    "Sequenced",
    "Topics",
    "Transactional",
    "acknowledge_again",
    "exactly_once",
]
