"""Checkpoints: the delivery progress of each subscription, stored in Postgres or in Kafka."""
