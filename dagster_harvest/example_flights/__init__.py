"""The demo in Dagster: the flights of 2013 in an outbox of their own, a day per partition, from source to audit."""
