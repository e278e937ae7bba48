"""Where records go."""

from harvest_lib.delivery.at_least_once import AtLeastOnce, LaneSettings
from harvest_lib.delivery.lanes import Lanes
from harvest_lib.delivery.pipelined import Pipelined
from harvest_lib.delivery.protocol import Delivery, Failure, Reports
from harvest_lib.delivery.topics import Topics

__all__ = ["AtLeastOnce", "Delivery", "Failure", "LaneSettings", "Lanes", "Pipelined", "Reports", "Topics"]
