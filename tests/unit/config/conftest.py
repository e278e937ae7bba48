"""Tests of the configuration see no variable of the machine, neither ours nor libpq's."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("HARVEST_", "PG"))]:
        monkeypatch.delenv(name)
