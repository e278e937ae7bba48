"""A producer that takes all and has nothing outstanding, to derive those from that fail, and a delivery over one."""

import uuid

from harvest_lib.delivery import AtLeastOnce, BatchDeliverySettings, Topics


class IdleProducer:
    """A `Producer` of confluent_kafka that does nothing."""

    def produce(self, *_, **__):
        pass

    def poll(self, _timeout):
        return 0

    def flush(self, _timeout):
        return 0

    def purge(self, **_):
        pass

    def close(self):
        pass

    def __len__(self):
        return 0


def begun(producer, **settings):
    """Return a delivery at least once that has begun a term, over a producer."""
    chosen = {"kafka": {}, "delivery_timeout_seconds": 600, "producer_provider": lambda _: producer, **settings}
    made = AtLeastOnce(BatchDeliverySettings(**chosen), Topics({}))
    made.begin(uuid.uuid4(), lambda: True)
    return made
