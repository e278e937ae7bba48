"""An error that asks for an extra names the command that adds it to the installation that is there."""

import importlib.metadata
import json
import sys

import pytest

from harvest_lib.errors import install_hint

pytestmark = pytest.mark.quick

WHEEL = {"url": "file:///tmp/outbox_harvester-0.1.0-py3-none-any.whl", "archive_info": {}}
FOLDER = {"url": "file:///home/bob/my%20shop", "dir_info": {}}
CLONE = {"url": "https://git.example.com/harvester", "vcs_info": {"vcs": "git", "commit_id": "8a2f01"}}
EDITABLE = {"url": "file:///home/bob/harvester", "dir_info": {"editable": True}}

WAYS = {
    "pip, from an index": (None, "pip", "/venv", "pip install 'outbox-harvester[local]'"),
    "pip, from a wheel": (WHEEL, "pip", "/venv", f"pip install 'outbox-harvester[local] @ {WHEEL['url']}'"),
    "pip, from a folder": (FOLDER, "pip", "/venv", "pip install '/home/bob/my shop[local]'"),
    "pip, editable": (EDITABLE, "pip", "/venv", "pip install -e '/home/bob/harvester[local]'"),
    "pip, from a repository": (
        CLONE,
        "pip",
        "/venv",
        "pip install 'outbox-harvester[local] @ git+https://git.example.com/harvester@8a2f01'",
    ),
    "uv": (None, "uv", "/venv", "uv pip install 'outbox-harvester[local]'"),
    "uv tool": (
        None,
        "uv",
        "/home/bob/.local/share/uv/tools/outbox-harvester",
        "uv tool install --force 'outbox-harvester[local]'",
    ),
    "pipx": (
        WHEEL,
        "pip",
        "/home/bob/.local/pipx/venvs/x",
        f"pipx install --force 'outbox-harvester[local] @ {WHEEL['url']}'",
    ),
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make an installation of which the metadata are what an installer writes."""

    def make(origin, installer, prefix):
        info = tmp_path / "outbox_harvester-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outbox-harvester\nVersion: 0.1.0\n")
        (info / "INSTALLER").write_text(f"{installer}\n")
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        found = importlib.metadata.PathDistribution(info)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _: found)
        monkeypatch.setattr(sys, "prefix", prefix)

    return make


@pytest.mark.parametrize(("origin", "installer", "prefix", "hint"), WAYS.values(), ids=WAYS)
def test_the_hint_follows_the_installation(installed, origin, installer, prefix, hint):
    installed(origin, installer, prefix)
    assert install_hint("local") == hint


def test_the_environment_of_a_clone_is_made_anew(installed, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / ".ready").touch()
    installed(EDITABLE, "uv", str(tmp_path / "venv"))
    assert install_hint("local") == "make setup (in /home/bob/harvester)"


def test_code_that_is_not_installed_gets_the_plain_command(monkeypatch):
    def missing(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_hint("local") == "pip install 'outbox-harvester[local]'"
