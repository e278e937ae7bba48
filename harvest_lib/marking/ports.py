"""The collaborators of the mark loop."""

from collections.abc import Callable
from dataclasses import dataclass

from harvest_lib.config import Limits
from harvest_lib.delivery.protocol import Delivery
from harvest_lib.events import Event
from harvest_lib.outbox.parking_rules import ParkingRules
from harvest_lib.source import SourceThread


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPorts:
    """What `MarkLoop` works with in one term, and the functions it reports to."""

    source: SourceThread
    delivery: Delivery
    parking: ParkingRules
    limits: Limits
    one_per_key: bool
    """Whether the key barrier is up: at most one record of a key in flight."""
    emit: Callable[[Event], None]
    delivered: Callable[[int], None]
    """Called with how many records were acknowledged and purged."""
