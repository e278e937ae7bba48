"""Fixtures for the tests of the native hand-over."""

import os
from collections import Counter

import pytest
from support.handing_over import SANITIZERS

from harvest_lib.delivery import producer
from harvest_lib.native import NativeSender, implementation, library


@pytest.fixture(autouse=True)
def _asked_anew():
    library.implementation.cache_clear()
    yield
    library.implementation.cache_clear()


@pytest.fixture
def use(monkeypatch):
    """Return what has one of the two implementations used from now on."""

    def used(name):
        monkeypatch.setenv(library.VARIABLE, name)
        library.implementation.cache_clear()

    return used


@pytest.fixture
def built():
    """Skip the test where no native library was built."""
    if implementation().library is None:
        pytest.skip(f"there is no native library here: {implementation().reason}")


@pytest.fixture(params=["native"] if SANITIZERS in os.environ else ["native", "python"])
def impl(request, use):
    """Have a test run with each implementation."""
    if request.param == "native" and implementation().library is None:
        pytest.skip(f"there is no native library here: {implementation().reason}")
    use(request.param)
    return request.param


@pytest.fixture
def handed_over(monkeypatch):
    """Count the records that go natively, however slow the machine is: the answer to whether they may go holds."""
    monkeypatch.setattr(producer, "_ANSWER_SECONDS", 600.0)
    counted = Counter()
    send = NativeSender.send

    def counting(self, rows, **named):
        went, code = send(self, rows, **named)
        counted["records"] += went
        return went, code

    monkeypatch.setattr(NativeSender, "send", counting)
    return counted
