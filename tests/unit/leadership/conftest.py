"""A clock for whoever takes part in an election."""

import pytest
from support.clock import Clock


@pytest.fixture
def clock():
    return Clock()
