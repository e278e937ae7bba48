"""The documentation: generated pages are up to date, links lead somewhere, every setting is described."""

import re
from pathlib import Path

import pytest

from harvest_lib.config import HarvestConfig, Limits
from harvest_lib.config.spelling import goharvest_name
from harvest_lib.telemetry import catalogue
from infra import docs
from infra.chaos.faults import FAULTS
from tests.simulation.mutations import MUTATIONS

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?:\]\(|\bsrc(?:set)?=\")([^)\s\"]+)[)\"]")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page, and those that the page sets itself."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return anchors | set(re.findall(r'<a id="([^"]+)"></a>', text))


def test_the_page_of_the_command_line_is_up_to_date():
    assert docs.FILE.read_text(encoding="utf-8") == docs.render(), "run `make docs`"


def test_the_page_of_metrics_is_up_to_date():
    assert docs.METRICS.read_text(encoding="utf-8") == docs.render_metrics(), "run `make docs`"


def test_the_page_of_metrics_has_each_that_there_is():
    page = docs.METRICS.read_text(encoding="utf-8")
    metrics = [each for each in vars(catalogue).values() if isinstance(each, catalogue.Metric)]
    assert len(metrics) > 30
    assert [each.name for each in metrics if page.count(f"| `{each.name}` |") != 1] == []


def test_the_page_of_the_command_line_does_not_depend_on_the_terminal(monkeypatch):
    before = docs.render()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert docs.render() == before
    assert "\x1b" not in before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in headings(target), link


ITEM = re.compile(r"( *)(?:[-*+]|\d+\.) +\S")


def broken_lists(text: str) -> list[str]:
    """Return lines that begin a list for GitHub, and go on with a paragraph for the site: Markdown wants an empty line
    before a list. Return those of a list within a list too that is indented by less than four, which is none there."""
    broken, before = [], ""
    for line in CODE.sub("", text).splitlines():
        found = ITEM.match(line)
        goes_on = before.strip() and not before.startswith((" ", "#", "<")) and not ITEM.match(before)
        if found and (goes_on or 0 < len(found[1]) < 4):
            broken.append(line)
        before = line
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_are_lists_on_the_site_too(page):
    assert broken_lists(page.read_text(encoding="utf-8")) == []


def test_a_list_that_is_none_on_the_site_is_found():
    assert broken_lists("Three are:\n- one\n- two\n") == ["- one"]
    assert broken_lists("1. one\n  - two\n") == ["  - two"]
    assert broken_lists("# Three\n\n- one\n  goes on\n- two\n\n```\na\n- b\n```\n") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_are_there(page):
    named = re.findall(r"`(tests/[\w/]+(?:/|\.py))`", page.read_text(encoding="utf-8"))
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_the_page_of_promises_says_how_many_mutations_there_are():
    assert f"in {len(MUTATIONS)} ways" in (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_the_matrix_of_guarantees_has_each_fault_that_is_injected_and_no_other():
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert {each for each in named if "-" in each} | (named & set(FAULTS)) == set(FAULTS)


def test_every_example_is_in_their_index():
    folder = ROOT / "docs" / "examples"
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    linked = {Path(link) for link in LINK.findall((folder / "README.md").read_text(encoding="utf-8"))}
    assert files - linked == {Path("README.md")}


def reachable(start: Path) -> set[Path]:
    """Return the pages that links lead to from a page, directly or by way of others, and the page itself."""
    found, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        links = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link}
        pages = {target for target in targets if target.suffix == ".md" and target.is_file()} - found
        found |= pages
        waiting += pages
    return found


def test_every_page_is_reached_from_the_readme():
    assert set(PAGES) - reachable(ROOT / "README.md") == set()


def test_a_page_that_nothing_links_to_is_found(tmp_path):
    start, linked, orphan = (tmp_path / name for name in ("start.md", "linked.md", "orphan.md"))
    start.write_text("[linked](linked.md#part) [elsewhere](https://example.com/orphan.md)")
    linked.write_text("# Part\n[back](start.md)\n```\n[in code](orphan.md)\n```\n")
    orphan.write_text("[out](start.md)")
    assert reachable(start) == {start, linked}


@pytest.mark.parametrize("name", [*HarvestConfig.model_fields, *Limits.model_fields])
def test_every_setting_is_described(name):
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{goharvest_name(name)}`.*\| `{name}` \|", page, re.MULTILINE)


SECRET_ON_A_COMMAND_LINE = re.compile(
    r"""^[^#]*(?:--dsn[ =]["']?(?:\$\{?HARVEST_DSN|[^"'\n]*password=[^*\s])|psql\s(?:[^\n]*password=[^*\s]|"?\$))""",
    re.MULTILINE,
)


SHOWN = [*PAGES, ROOT / "harvest_lib" / "local_stack" / "secure.py"]
"""Pages, and what `harvest up --secure` prints."""


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_puts_a_password_on_a_command_line(page):
    """Everybody on the machine can read it there; the shell puts what a variable holds there too."""
    assert SECRET_ON_A_COMMAND_LINE.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        'python -m harvest_lib.spark.audit --dsn "$HARVEST_DSN" --topic flights',
        "    python -m harvest_lib.spark.audit --dsn ${HARVEST_DSN}",
        "job --dsn 'host=db user=app password=x'",
        'psql "host=db password=x" -c',
        'harvest grants postgres | psql "$OWNER_DSN"',
    ],
)
def test_a_password_on_a_command_line_is_found(line):
    assert SECRET_ON_A_COMMAND_LINE.search(line)
