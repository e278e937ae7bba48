"""Room for shards: lowered by refused connections alone, never below the sessions there are, and soon tried again."""

import pytest
from support.clock import Clock

from harvest_lib.consume.room import ShardRoom
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.process import open_files

pytestmark = pytest.mark.quick

FULL = 'failed: FATAL:  too many connections for role "few"'
FULL_IN_GERMAN = "failed: FATAL:  Datenbank »shop« akzeptiert keine Verbindungen mehr"
STARTING = "failed: FATAL:  the database system is starting up"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("harvest_lib.consume.room.boot_seconds", clock)
    return clock


@pytest.fixture
def files(monkeypatch):
    """Open files: their number and their limit."""

    class Files:
        used, limit = 100, 1_000_000

    monkeypatch.setattr(open_files, "used", lambda: Files.used)
    monkeypatch.setattr(open_files, "limit", lambda: Files.limit)
    monkeypatch.setattr(open_files, "raise_limit", lambda: Files.limit)
    return Files


@pytest.fixture
def room(clock, files):
    room = ShardRoom()
    room.begin()
    return room


def refusal(text):
    return DatabaseUnavailable("Postgres opens no session", evidence=text, next_step="wait")


def admitted(room, at_work, waiting):
    """Begin shards while there is room; return how many are at work then."""
    while waiting and room.admits(at_work):
        at_work, waiting = at_work + 1, waiting - 1
    return at_work


def test_a_server_that_restarts_takes_no_room(room):
    assert admitted(room, 0, 32) == 32
    for others in range(31, -1, -1):
        assert not room.refused(refusal(STARTING), others, 0, has_opened=False)
    assert admitted(room, 0, 32) == 32


def test_connections_that_are_refused_leave_room_for_the_sessions_there_are(room, clock):
    assert admitted(room, 0, 32) == 32
    for others in range(31, 19, -1):
        assert room.refused(refusal(FULL), others, 20, has_opened=False)
    assert admitted(room, 20, 12) == 20
    clock.now += 2.0
    assert admitted(room, 20, 12) == 32


def test_room_doubles_every_few_seconds(room, clock):
    admitted(room, 0, 64)
    for others in range(63, 0, -1):
        room.refused(refusal(FULL), others, 0, has_opened=False)
    at_work = 0
    for _ in range(7):
        at_work = admitted(room, at_work, 64 - at_work)
        clock.now += 2.0
    assert at_work == 64


def test_more_connections_are_tried_less_often_while_that_is_in_vain(room, clock):
    admitted(room, 0, 8)
    tries = 0
    room.refused(refusal(FULL), 7, 3, has_opened=False)
    for _ in range(600):
        clock.now += 1.0
        if admitted(room, 3, 5) > 3:
            tries += 1
            for others in (5, 4, 3):
                assert room.refused(refusal(FULL), others, 3, has_opened=False)
    assert 10 < tries < 20


def test_a_refusal_while_others_still_connect_leaves_room_for_them(room):
    admitted(room, 0, 32)
    room.refused(refusal(FULL), 31, 17, has_opened=False)
    room.log_waiting(12, 20, 20)
    assert admitted(room, 17, 15) == 20


def test_sessions_that_end_slowly_take_room_for_seconds_alone(room, clock):
    """Connections were tried in vain for minutes; then ten turns end, and Postgres has not yet ended their sessions."""
    admitted(room, 0, 32)
    room.refused(refusal(FULL), 20, 20, has_opened=False)
    for _ in range(60):
        clock.now += 5.0
        if admitted(room, 20, 1) > 20:
            room.refused(refusal(FULL), 20, 20, has_opened=False)
        room.log_waiting(1, 20, 20)
    assert admitted(room, 10, 22) == 20
    for others in range(19, 9, -1):
        assert room.refused(refusal(FULL), others, 10, has_opened=False)
    room.log_waiting(12, 10, 10)
    clock.now += 2.0
    assert admitted(room, 10, 22) == 20


def test_connections_that_others_took_are_not_tried_every_two_seconds(room, clock):
    admitted(room, 0, 32)
    room.refused(refusal(FULL), 20, 20, has_opened=False)
    room.log_waiting(12, 20, 20)
    tries = 0
    for _ in range(600):
        clock.now += 1.0
        at_work = admitted(room, 10, 22)
        tries += at_work > 10
        for others in range(at_work - 1, 9, -1):
            assert room.refused(refusal(FULL), others, 10, has_opened=False)
        room.log_waiting(22, 10, 10)
    assert 10 < tries < 20


def test_a_refusal_in_another_language_counts_where_others_get_sessions(room):
    admitted(room, 0, 8)
    assert not room.refused(refusal(FULL_IN_GERMAN), 7, 3, has_opened=False)
    assert room.refused(refusal(FULL_IN_GERMAN), 7, 3, has_opened=True)
    assert room.refused(refusal(FULL_IN_GERMAN), 6, 3, has_opened=False)
    assert not room.admits(3)


def test_without_another_at_work_it_is_a_failure(room):
    admitted(room, 0, 1)
    assert not room.refused(refusal(FULL), 0, 0, has_opened=False)


def test_a_bound_is_forgotten_once_all_have_a_session(room, clock):
    admitted(room, 0, 4)
    room.refused(refusal(FULL), 3, 3, has_opened=False)
    clock.now += 2.0
    assert admitted(room, 3, 1) == 4
    room.log_waiting(0, 4, 3)
    assert room.refused(refusal(FULL_IN_GERMAN), 3, 3, has_opened=False)
    clock.now += 4.0
    assert admitted(room, 3, 1) == 4
    room.log_waiting(0, 4, 4)
    assert not room.refused(refusal(FULL_IN_GERMAN), 3, 3, has_opened=False)


def test_files_are_counted_before_many_shards_begin(room, clock, files):
    files.limit = 1_024
    at_work = admitted(room, 0, 200)
    assert 1 < at_work < 10
    clock.now += 3.0
    files.used = 100 + at_work * 40
    at_work = admitted(room, at_work, 200)
    assert 100 + at_work * 40 + 64 <= files.limit
    assert at_work >= 21


def said(caplog):
    return [record.reason for record in caplog.records if record.message == "shards_wait"]


def test_files_that_are_kept_free_for_those_that_begin_are_no_lack(room, clock, files, caplog):
    files.limit = 1_024
    at_work = admitted(room, 0, 120)
    room.log_waiting(120 - at_work, at_work, 0)
    assert said(caplog) == []
    clock.now += 3.0
    files.used = 100 + at_work * 9
    at_work = admitted(room, at_work, 120 - at_work)
    files.used = 950
    room.log_waiting(120 - at_work, at_work, at_work)
    (reason,) = said(caplog)
    assert "950 of 1024" in reason


def test_files_of_those_that_begin_do_not_count_as_those_of_others(room, clock, files):
    files.limit = 1_024
    admitted(room, 0, 7)
    clock.now += 3.0
    files.used = 100 + 7 * 14
    assert admitted(room, 7, 23) == 30
    files.used = 100 + 30 * 14
    assert room.admits(30)  # 7 are settled, and the files of 30 are not theirs


def test_each_cause_is_said_once(room, clock, files, caplog):
    files.limit = 600
    admitted(room, 0, 3)
    clock.now += 3.0
    files.used = 100 + 3 * 14
    for _ in range(3):
        room.refused(refusal(FULL), 20, 20, has_opened=False)
        room.log_waiting(12, 20, 20)
        clock.now += 60.0
        room.admits(10)
        files.used = 590
        room.log_waiting(22, 10, 10)
        files.used = 300
    assert len(said(caplog)) == 2
