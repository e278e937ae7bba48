"""Other relays from an outbox to Kafka beside ours, in one run, on one Postgres and one Kafka: `make compare`.

One relay runs at a time. A relay that cannot be built on this machine is left out, and the report says why.
"""
