"""The picture of the last audits: it is one, and it is drawn of whatever audits know."""

import base64
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from matplotlib.figure import Figure

from dagster_harvest.plots import audit_plot
from harvest_lib.audit.summary import AuditSummary

pytestmark = pytest.mark.quick

FIRST = datetime(2013, 1, 1, 3, tzinfo=UTC)
ZERO = {field.name: 0 for field in fields(AuditSummary)} | {"audit_id": "nightly", "at": FIRST}


@pytest.fixture
def drawn(monkeypatch):
    """The panels' lines by their labels, as they were when the picture was made."""
    lines = {}

    def savefig(figure, *where, **how):
        for axes in figure.axes:
            lines.update({line.get_label(): list(line.get_ydata()) for line in axes.lines})
        return real(figure, *where, **how)

    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", savefig)
    return lines


def test_delays_and_counts_are_drawn_over_the_audits(drawn):
    first = AuditSummary(**{**ZERO, "committed": 100, "delay_p99_ms": 2.5, "keys_with_gaps": None})
    second = replace(first, at=FIRST + timedelta(days=1), committed=1_500, lost=3, delay_p99_ms=None, keys_with_gaps=1)
    markdown = audit_plot([first, second])
    prefix = "![the last audits](data:image/png;base64,"
    assert markdown.startswith(prefix)
    picture = base64.b64decode(markdown.removeprefix(prefix).removesuffix(")"), validate=True)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 100_000, "Dagster stores it with each audit"
    assert drawn["committed 1,500"] == [100, 1500]
    assert drawn["lost 3"] == [0, 3]
    assert drawn["delay_p99_ms"][0] == 2.5
    assert drawn["delay_p99_ms"][1] != drawn["delay_p99_ms"][1], "what is not known is not drawn"
    assert drawn["keys_with_gaps 1"][1] == 1
