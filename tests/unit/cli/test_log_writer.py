"""The handler that writes the log: nothing waits for its reader, and what is missing is counted."""

import json
import logging
import os
import subprocess
import sys
import threading

import pytest
from support.unread import unread_pipe
from support.waiting import eventually

from harvest_lib.cli.log_writer import LogWriter

pytestmark = pytest.mark.gate

MOST = 1_000
LINE = "x" * 99
"""With its end a tenth of what there is room for."""


@pytest.fixture
def written():
    """A logger, its handler and the pipe that it writes to, which is full."""
    logger, ours = logging.Logger("some.program"), logging.getLogger("harvest_lib")
    with unread_pipe() as pipe, os.fdopen(os.dup(pipe.writes), "w") as stream:
        handler = LogWriter(stream, MOST)
        for each in (logger, ours):
            each.addHandler(handler)
        yield logger, handler, pipe
        for each in (logger, ours):
            each.removeHandler(handler)
        pipe.read()
        handler.flush()


def lines_of(pipe, number):
    """Return so many lines, once they are there."""
    found = []

    def read():
        found.append(pipe.read())
        return "".join(found).count("\n") >= number

    eventually(read, "they are written")
    return "".join(found).splitlines()


def test_what_there_is_no_room_for_is_counted_where_it_is_missing(written):
    logger, handler, pipe = written
    for number in range(25):
        logger.info("%02d%s", number, LINE[2:])
    handler.flush()
    assert [line[:2] for line in lines_of(pipe, 11)] == [*(f"{number:02}" for number in range(10)), "lo"]
    logger.info("after")
    assert lines_of(pipe, 1) == ["after"]


def test_the_event_has_the_number(written, caplog):
    logger, _, pipe = written
    for _ in range(25):
        logger.info(LINE)
    assert lines_of(pipe, 11)[-1] == "log_lines_dropped"
    (event,) = [each for each in caplog.records if each.message == "log_lines_dropped"]
    assert event.count == 15


def test_a_line_longer_than_the_room_is_written_alone(written):
    logger, _, pipe = written
    logger.info("y" * (3 * MOST))
    assert lines_of(pipe, 1) == ["y" * (3 * MOST)]


def test_a_record_that_cannot_be_written_costs_itself_alone(written, capsys):
    logger, _, pipe = written
    logger.info("%d", "no number")
    logger.info("after")
    assert lines_of(pipe, 1) == ["after"]
    assert "Logging error" in capsys.readouterr().err


def test_lines_go_nowhere_else_after_the_stream_is_closed(tmp_path):
    reads, writes = os.pipe()
    stream = os.fdopen(writes, "w")
    handler, logger = LogWriter(stream, MOST), logging.Logger("some.program")
    logger.addHandler(handler)
    stream.close()
    with (tmp_path / "connection").open("w") as other:
        assert other.fileno() == writes, "it has the number that the stream had"
        logger.info("a line")
        handler.flush()
    assert not (tmp_path / "connection").read_text()
    assert os.read(reads, 100) == b"a line\n"
    os.close(reads)


def test_a_pipe_that_another_program_has_set_not_to_wait_is_written_in_full(written):
    logger, _, pipe = written
    os.set_blocking(pipe.writes, False)
    logger.info("whole")
    assert lines_of(pipe, 1) == ["whole"]


def test_a_child_of_a_fork_writes_its_own_lines_alone(written):
    logger, handler, pipe = written
    logger.info("parent")
    child = os.fork()
    if not child:
        logger.info("child")
        handler.flush()
        os._exit(0)
    assert lines_of(pipe, 2) == ["parent", "child"]
    assert os.waitpid(child, 0)[1] == 0


ENDING = """
import logging, sys
from harvest_lib.cli.log_output import configure_logging
configure_logging("json", "info")
for number in range(20_000):
    logging.getLogger("some.program").info("line", extra={"number": number})
sys.exit(7)
"""


def test_the_end_of_a_process_does_not_wait_for_a_reader_that_reads_no_more():
    with unread_pipe() as pipe:
        assert (
            subprocess.run([sys.executable, "-c", ENDING], check=False, stderr=pipe.writes, timeout=60).returncode == 7
        )


def test_the_end_of_a_process_waits_for_one_that_reads():
    done = subprocess.run([sys.executable, "-c", ENDING], check=False, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 7
    assert [json.loads(line)["number"] for line in done.stderr.splitlines()] == [*range(20_000)]


def test_lines_of_several_threads_are_whole(written):
    logger, handler, pipe = written
    pipe.read()
    threads = [threading.Thread(target=logger.info, args=(f"{number}" * 9,)) for number in range(9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    handler.flush()
    assert sorted(lines_of(pipe, 9)) == [f"{number}" * 9 for number in range(9)]
