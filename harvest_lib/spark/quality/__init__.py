"""Data contracts (pandera) and expectations (Great Expectations) for the records."""
