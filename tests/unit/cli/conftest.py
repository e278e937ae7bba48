"""A place in which commands find no configuration."""

import os

import pytest


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty current folder, without variables that would configure a command."""
    for name in [name for name in os.environ if name.startswith(("HARVEST_", "PG"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
