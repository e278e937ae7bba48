"""A project of a user."""

import pytest
from dagster.components.testing import create_defs_folder_sandbox
from support.component_project import Project


@pytest.fixture
def project(monkeypatch):
    for name in ("HARVEST_CONFIG", "HARVEST_DSN", "HARVEST_OUTBOX_TABLE", "HARVEST_LEADER_GROUP_ID"):
        monkeypatch.delenv(name, raising=False)
    with create_defs_folder_sandbox() as sandbox:
        yield Project(sandbox)
