"""A native outbox with small segments."""

import pytest
from support.native import Native


@pytest.fixture
def native(dsn):
    made = Native(dsn)
    yield made
    made.connection.close()
