"""Delivery of records to Kafka."""

from harvest_lib.delivery.at_least_once import AtLeastOnce
from harvest_lib.delivery.protocol import (
    CHECKPOINT_REFUSED,
    TERM_OVER,
    Abandoned,
    BatchCommitted,
    BatchDeliverySettings,
    BatchFailed,
    BatchFenced,
    BatchOutcome,
    Delivery,
)
from harvest_lib.delivery.sequenced import Sequenced, acknowledge_again
from harvest_lib.delivery.topics import Topics
from harvest_lib.delivery.transactional import CheckpointPlace, Transactional, TransactionalProducer

__all__ = [
    "CHECKPOINT_REFUSED",
    "TERM_OVER",
    "Abandoned",
    "AtLeastOnce",
    "BatchCommitted",
    "BatchDeliverySettings",
    "BatchFailed",
    "BatchFenced",
    "BatchOutcome",
    "CheckpointPlace",
    "Delivery",
    "Sequenced",
    "Topics",
    "Transactional",
    "TransactionalProducer",
    "acknowledge_again",
]
