"""The example: flights of 2013, written to a business table and to the outbox."""
