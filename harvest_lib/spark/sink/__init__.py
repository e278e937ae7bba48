"""The parts of the Spark sink that appends a DataFrame to the outbox in one transaction."""
