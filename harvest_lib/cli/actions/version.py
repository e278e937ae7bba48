"""Client libraries and hand-over implementation for `harvest version`."""

import confluent_kafka
from psycopg import pq

from harvest_lib.native import implementation


def client_libraries() -> str:
    """Return the versions of the clients' libraries, as the clients have loaded them."""
    return f"librdkafka {confluent_kafka.libversion()[0]}, libpq {pq.version_pretty(pq.version())}"


def hand_over() -> str:
    """Return which implementation hands records over, and why. Raises ConfigError as `implementation` does."""
    chosen = implementation()
    return f"hand-over: {chosen.name} ({chosen.reason})"
