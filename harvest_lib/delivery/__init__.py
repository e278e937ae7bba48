"""Delivery of records to Kafka."""

from harvest_lib.delivery.alternating import AlternatingProducers, exactly_once
from harvest_lib.delivery.batches import PipelinedBatches
from harvest_lib.delivery.protocol import (
    TERM_OVER,
    BatchCommitted,
    BatchDeliverySettings,
    BatchFailed,
    BatchFenced,
    BatchOutcome,
    Delivery,
)
from harvest_lib.delivery.sequenced import Sequenced, acknowledge_again
from harvest_lib.delivery.topics import Topics
from harvest_lib.delivery.transactional import CheckpointPlace, Transactional

__all__ = [
    "TERM_OVER",
    "AlternatingProducers",
    "BatchCommitted",
    "BatchDeliverySettings",
    "BatchFailed",
    "BatchFenced",
    "BatchOutcome",
    "CheckpointPlace",
    "Delivery",
    "PipelinedBatches",
    "Sequenced",
    "Topics",
    "Transactional",
    "acknowledge_again",
    "exactly_once",
]
