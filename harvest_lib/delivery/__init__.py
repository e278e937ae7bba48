"""Where records go."""

from harvest_lib.delivery.alternating import InTurn, exactly_once
from harvest_lib.delivery.at_least_once import AtLeastOnce, LaneSettings
from harvest_lib.delivery.batch_protocol import Committed, Deposed, Failed, LapDelivery, LapSettings, Offer, Outcome
from harvest_lib.delivery.batches import PipelinedLaps
from harvest_lib.delivery.lanes import Lanes
from harvest_lib.delivery.pipelined import Pipelined
from harvest_lib.delivery.protocol import Delivery, Failure, Reports
from harvest_lib.delivery.sequenced import Sequenced, acknowledge_again
from harvest_lib.delivery.topics import Topics
from harvest_lib.delivery.transactional import CheckpointPlace, Transactional

__all__ = [
    "AtLeastOnce",
    "CheckpointPlace",
    "Committed",
    "Delivery",
    "Deposed",
    "Failed",
    "Failure",
    "InTurn",
    "LaneSettings",
    "Lanes",
    "LapDelivery",
    "LapSettings",
    "Offer",
    "Outcome",
    "Pipelined",
    "PipelinedLaps",
    "Reports",
    "Sequenced",
    "Topics",
    "Transactional",
    "acknowledge_again",
    "exactly_once",
]
