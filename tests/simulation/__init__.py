"""A simulation of the harvester: its own loops, sources, deliveries and stores, over a Postgres, a Kafka and an
election in which time, chance, input and output are decided by one seed."""
