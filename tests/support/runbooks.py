"""The commands of the runbooks, as their page has them."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "runbooks.md"
PARTS = ("What it means.", "How to look.", "What to do.")
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"(?<![\w$'\"{-])[A-Z]{4,}(?![\w=(])")
_OF_SQL = {"SELECT", "FROM", "WHERE", "LIKE", "ORDER", "DESC", "LIMIT", "INTO", "NULL", "DISTINCT", "SYSTEM"}
_TERM = {"TERM", "KILL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    """A section: the commands of how to look, and the steps of what to do, one for each cause."""

    look: str
    steps: list[str]


def sections(text=None):
    """Return the text of each section, by the alert it is for."""
    pieces = re.split(r"^## (\w+)\n", text or PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def runbook(section):
    """Return the commands of a section. Fails if it does not say each of the three things."""
    places = [section.index(f"**{part}**") for part in PARTS]
    assert places == sorted(places)
    _, look, do = (section[begins:ends] for begins, ends in zip(places, [*places[1:], None], strict=True))
    return Runbook(look="".join(_BLOCK.findall(look)), steps=_BLOCK.findall(do))


def filled(commands, labels):
    """Return commands with each word in capitals replaced by the alert's label of that name."""

    def value(match):
        word = match.group()
        return word if word in _OF_SQL | _TERM else labels[word.lower()]

    return _PLACEHOLDER.sub(value, commands)
