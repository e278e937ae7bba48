"""Files that a session of tests leaves in the state folder."""

from types import SimpleNamespace

import pytest
from support.session_folder import LOCK, empty_left_folders, session_folder

pytestmark = pytest.mark.quick


def run(parts, *, failed):
    """Run a session that keeps data and a log, and end it."""
    session = SimpleNamespace(testsfailed=0)
    with session_folder(session, parts, "test-stack") as folder:
        (folder / "postgres-18").mkdir()
        (folder / "postgres-18" / "data").write_text("rows")
        (folder / "stack.json").write_text("{}")
        session.testsfailed = failed
    return folder


def test_a_session_that_passed_leaves_only_its_lock(tmp_path):
    folder = run(tmp_path, failed=0)
    assert [entry.name for entry in folder.iterdir()] == [LOCK]


def test_a_session_that_failed_leaves_data_and_logs_to_be_read(tmp_path):
    folder = run(tmp_path, failed=1)
    assert (folder / "postgres-18" / "data").read_text() == "rows"


def test_sessions_at_one_time_have_folders_of_their_own_and_a_later_one_takes_the_first(tmp_path):
    session = SimpleNamespace(testsfailed=0)
    with (
        session_folder(session, tmp_path, "test-stack") as first,
        session_folder(session, tmp_path, "test-stack") as second,
    ):
        assert (first.name, second.name) == ("test-stack-1", "test-stack-2")
        run(tmp_path, failed=0)
        assert first.is_dir()
    with session_folder(session, tmp_path, "test-stack") as again:
        assert again == first


def test_what_failed_sessions_left_is_emptied_and_what_runs_stays(tmp_path):
    session = SimpleNamespace(testsfailed=0)
    with session_folder(session, tmp_path, "test-stack") as running:
        left = run(tmp_path, failed=1)
        (running / "stack.json").write_text("{}")
        empty_left_folders(tmp_path)
        assert (running / "stack.json").exists()
        assert [entry.name for entry in left.iterdir()] == [LOCK]
