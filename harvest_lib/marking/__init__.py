"""The mark-purge/reset engine: it marks rows, publishes each one, and purges what Kafka acknowledged."""
