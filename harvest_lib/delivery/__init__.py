"""Where records go."""

from harvest_lib.delivery.at_least_once import AtLeastOnce
from harvest_lib.delivery.protocol import Delivery, Failure, Reports

__all__ = ["AtLeastOnce", "Delivery", "Failure", "Reports"]
