"""How far tasks have looked at an asset's events, and how a watcher's errors are told."""

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest

from harvest_lib.airflow.event_progress import EventProgress
from harvest_lib.airflow.triggers import troubles
from harvest_lib.airflow.triggers.troubles import WatcherTroubles
from harvest_lib.errors import ConfigError, DatabaseUnavailable

pytestmark = pytest.mark.quick

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def stored(progress):
    return json.loads(json.dumps(progress.as_json()))


def test_a_task_without_progress_begins_at_the_first_event_of_its_run():
    assert EventProgress.of_json(None, [at(9), at(5)]).begin == at(5)
    assert EventProgress.of_json(None, []).begin is None


def test_the_next_task_looks_again_at_what_may_have_been_committed_late_and_knows_what_it_has_seen():
    first = EventProgress.of_json(None, [at(0)])
    for number, seconds in enumerate((0, 100, 110, 120)):
        first.note(number, at(seconds))
    found = EventProgress.of_json(stored(first), [at(50)])
    assert found.begin == at(50), "an event of its own run may have been committed too late for the task before"
    assert EventProgress.of_json(stored(first), [at(100)]).begin == at(90)
    assert found.recent.keys() == {1, 2, 3}
    found.note(4, at(115))
    assert EventProgress.of_json(stored(found), []).begin == at(90), "an earlier event moves nothing back"


def test_a_run_whose_events_are_before_all_that_was_looked_at_begins_with_them():
    later = EventProgress.of_json(None, [at(100)])
    later.note(1, at(200))
    cleared = EventProgress.of_json(stored(later), [at(10)])
    assert cleared.begin == at(10)
    assert EventProgress.of_json(stored(later), [at(150)]).begin == at(150)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(troubles.time, "monotonic", lambda: now[0])
    return now


def test_an_error_is_told_once_a_minute_and_another_one_at_once(clock, caplog):
    watcher = WatcherTroubles("the watcher")
    away = DatabaseUnavailable("away", next_step="start it")
    for second in range(0, 130, 10):
        clock[0] = second
        watcher.tell(away)
    assert len(caplog.records) == 3
    assert "the watcher waits: away\n  next step: start it" in caplog.text
    watcher.tell(DatabaseUnavailable("gone", next_step="start it"))
    assert len(caplog.records) == 4
    with caplog.at_level(logging.INFO):
        watcher.end()
        watcher.end()
    assert [each.getMessage() for each in caplog.records[4:]] == ["the watcher goes on"]
    watcher.tell(away)
    assert len(caplog.records) == 6


def test_pauses_grow_and_an_error_that_another_try_would_find_has_a_long_one(clock, caplog):
    watcher = WatcherTroubles("the watcher")
    away = DatabaseUnavailable("away", next_step="start it")
    assert [watcher.tell(away) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert watcher.tell(ConfigError("wrong", field="name", next_step="correct it")) == 60
    watcher.end()
    assert watcher.tell(ZeroDivisionError()) == 1
    assert "Traceback" not in caplog.text
    assert "ZeroDivisionError" in caplog.text
