"""The limit of a test with its fixtures, held also after a failure: pytest takes it away there."""

import faulthandler

import pytest


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Begin the limit again, for the fixtures that are yet to end."""
    seconds = float(node.config.getini("faulthandler_timeout") or 0)
    if isinstance(node, pytest.Item) and seconds > 0:
        faulthandler.dump_traceback_later(seconds, exit=True)
