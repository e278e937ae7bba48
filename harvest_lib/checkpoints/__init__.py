"""Checkpoints: how far each subscription has read, kept in Postgres or in Kafka."""
