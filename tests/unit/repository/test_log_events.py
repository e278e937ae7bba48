"""The page of log events says what the code logs: every event, with its level and its fields."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]
PACKAGES = ("harvest_lib", "dagster_harvest")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
PAGE = ROOT / "docs" / "log-events.md"
SENTENCES = "harvest_lib/airflow/"
"""Folder of tasks that write sentences: into the log of Airflow's task."""

MADE_ELSEWHERE = {
    ("harvest_lib/postgres/translation.py", "error"): (
        ("database_access_denied", "kafka_access_denied"),
        {"reason", "next_step"},
    ),
    ("harvest_lib/harvester/terms.py", "info"): (
        ("leader_acquired", "leader_refreshed", "leader_fenced", "leader_revoked"),
        {"leader_id", "shard"},
    ),
    ("harvest_lib/pipeline/pipeline.py", "info"): (
        ("pipeline_resuming", "pipeline_running", "pipeline_stopping", "pipeline_stopped"),
        {"pipeline"},
    ),
    ("harvest_lib/consume/shard.py", "warning"): (
        ("message_refused", "transaction_refused"),
        {"shard", "offset", "attempt", "reason"},
    ),
}
"""Calls whose event is not written out there: by module and level, what they log."""

FIELDS_ELSEWHERE = {
    "message_parked": {"shard", "offset", "reason"},
    "producers_forgotten": {"shard", "count"},
    "spark_batch_done": {"batch", "status", "rows", "staging_seconds", "promote_seconds"},
    "log_repaired": {"file", "byte", "cut_bytes", "goes_on_at"},
    "pool_conflict": {
        *("reason", "next_step"),
        *("their_group", "their_process", "their_server", "their_table", "their_leader_topic"),
    },
}
"""Events whose fields are not all written out at the call."""


def calls():
    """Yield module, line, level, the event (None if it is not written out there) and the fields of each call; fields
    are None where they are not written out."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in {"_log", "log", "logger"}
                ):
                    module = str(path.relative_to(ROOT))
                    yield module, node.lineno, node.func.attr, *_said(node)
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Harmless":
                    yield str(path.relative_to(ROOT)), node.lineno, "exception", node.args[1].value, frozenset()


def _said(node):
    event = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    extra = next((each.value for each in node.keywords if each.arg == "extra"), None)
    if extra is None:  # structlog takes fields as keyword arguments
        return event, frozenset(each.arg for each in node.keywords if each.arg != "exc_info")
    if not isinstance(extra, ast.Dict) or any(key is None or not isinstance(key, ast.Constant) for key in extra.keys):
        return event, None
    return event, frozenset(key.value for key in extra.keys)


def logged():
    """Return levels and fields of each event in the code."""
    levels, fields = defaultdict(set), defaultdict(set)
    for module, line, level, event, said in calls():
        if module.startswith(SENTENCES):
            continue
        if event is None:
            place = (module, level)
            assert place in MADE_ELSEWHERE, f"{module}:{line} logs an event that is not written out: add it here"
            names, their_fields = MADE_ELSEWHERE[place]
            events = dict.fromkeys(names, their_fields)
        else:
            assert said is not None or event in FIELDS_ELSEWHERE, f"{module}:{line}: add the fields of {event} here"
            events = {event: said if said is not None else FIELDS_ELSEWHERE[event]}
        for each, named in events.items():
            levels[each].add(level)
            fields[each] |= set(named)
    return {event: (levels[event], fields[event]) for event in levels}


def documented():
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0].startswith("`"):
            for event in re.findall(r"`(\w+)`", cells[0]):
                assert event not in found, f"{event} is there twice"
                assert cells[3], f"{event} has no meaning"
                found[event] = (set(cells[1].split(", ")), set(re.findall(r"`(\w+)`", cells[2])))
    return found


CODE, DOCUMENTED = logged(), documented()


def test_there_are_events():
    assert len(CODE) > 50


@pytest.mark.parametrize("event", sorted(CODE.keys() | DOCUMENTED.keys()))
def test_an_event_is_described_as_it_is_logged(event):
    assert event in DOCUMENTED, f"docs/log-events.md does not have {event}"
    assert event in CODE, f"nothing logs {event}"
    assert DOCUMENTED[event] == CODE[event]


def test_events_are_names_and_not_sentences():
    assert [event for event in CODE if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)] == []
