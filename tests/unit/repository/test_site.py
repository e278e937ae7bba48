"""The site of the documentation: it builds strictly, and what is broken or undocumented fails it."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, PluginError

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "infra" / "site" / "mkdocs.yml"
FETCHED = re.compile(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")
ABOUT_A_PAGE = re.compile(r"""<link[^>]*rel=["']?(?:canonical|next|prev)""")

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def build_site(folder, docs=ROOT / "docs"):
    config = load_config(str(CONFIG), docs_dir=str(docs), site_dir=str(folder / "site"))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder / "site"


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", CONFIG.parent / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_builds_with_search_and_the_reference_and_fetches_nothing(tmp_path):
    site = build_site(tmp_path)
    assert "append_async" in (site / "api" / "harvest_lib.html").read_text()
    assert "maxSegmentAge" in (site / "search" / "search_index.json").read_text()
    assert "Your part of the contract" in (site / "index.html").read_text()
    assert '<div class="grid cards">' in (site / "index.html").read_text()
    listed = re.findall(r"^- \[.+\]\((.+)\)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert {"index.html", "guarantees.html", "api/harvest_lib.html", "decisions/index.html"} < set(listed)
    assert [each for each in listed if not (site / each).is_file()] == []
    assert "A writer locks the business row" in (site / "llms-full.txt").read_text()
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        images = re.findall(r"""<(?:img|source)[^>]*\bsrc(?:set)?=["']([^"':]+)["']""", page.read_text())
        assert [each for each in images if not (page.parent / each).is_file()] == [], page
        found = [each for each in FETCHED.findall(page.read_text()) if not ABOUT_A_PAGE.search(each)]
        assert found == [], page


def test_each_way_to_be_broken_fails_it(tmp_path, caplog):
    docs = Path(shutil.copytree(ROOT / "docs", tmp_path / "docs"))
    (docs / "table.md").write_text("# Table\n\n[gone](gone.md), [gone](archive.md#no-such-heading)\n")
    (docs / "orphan.md").write_text("# Nobody links here\n")
    (docs / "moving.md").unlink()
    with pytest.raises(Abort):
        build_site(tmp_path, docs)
    for warning in (
        "'gone.md', but the target is not found",
        "does not contain an anchor '#no-such-heading'",
        "orphan.md",
        "'moving.md' is included in the 'nav' configuration, which is not found",
    ):
        assert warning in caplog.text


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("def bare(): ...\n", "bare"),
        ("class Bare: ...\n", "Bare"),
        ('class Half:\n    """Documented."""\n\n    def bare(self): ...\n', "Half.bare"),
    ],
)
def test_a_public_name_without_a_docstring_fails(hooks, tmp_path, code, named):
    (tmp_path / "anybody.py").write_text(code)
    with pytest.raises(PluginError, match=f"anybody.{named}$"):
        hooks._reference("anybody", tmp_path)


def test_what_is_private_inherited_or_of_a_protocol_needs_none(hooks, tmp_path):
    (tmp_path / "tidy.py").write_text(
        """from typing import Protocol


class Store(Protocol):
    \"\"\"Keeps.\"\"\"

    def keep(self) -> None:
        \"\"\"Keep it.\"\"\"


class Disk:
    \"\"\"`Store` on a disk.\"\"\"

    def keep(self) -> None: ...
    def _hidden(self) -> None: ...


class Larger(Disk):
    \"\"\"A larger one.\"\"\"

    def keep(self) -> None: ...


def _private(): ...
"""
    )
    assert "- Disk" in hooks._reference("tidy", tmp_path)
