"""Members of a pool that elects through Kafka."""

import pytest
from confluent_kafka import Consumer, Producer

from harvest_lib.leadership import Neli
from harvest_lib.leadership.neli_settings import NeliSettings


@pytest.fixture
def join(bootstrap_servers, group_id):
    """Make one more member of the pool, started; all are stopped at the end. `providers` make its clients."""
    members = []

    def make(shards=1, providers=(Consumer, Producer), **settings):
        chosen = {
            "topic": f"{group_id}.neli",
            "group_id": group_id,
            "shards": shards,
            "heartbeat_timeout_seconds": 1.5,
            "session_timeout_seconds": 3.0,
            "quiesce_timeout_seconds": 0.0,
            **settings,
        }
        consumers, producers = providers
        members.append(
            Neli(
                NeliSettings(**chosen),
                {"bootstrap.servers": bootstrap_servers},
                consumer_provider=consumers,
                producer_provider=producers,
            )
        )
        members[-1].start()
        return members[-1]

    yield make
    for member in members:
        member.stop(60)
