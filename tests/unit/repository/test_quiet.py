"""A session of tests ends without words of libraries after its last result."""

import io
import logging

import pytest
from support.quiet import keep_py4j_quiet

pytestmark = pytest.mark.quick


@pytest.fixture
def closed_handler():
    """A handler of the root logger that writes to what is closed, as one that was made during a test."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    stream.close()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("quiet", [False, True])
def test_the_end_of_a_connection_to_java_is_not_written_to_what_is_closed(quiet, closed_handler, capsys, monkeypatch):
    py4j = logging.getLogger("py4j")
    monkeypatch.setattr(py4j, "propagate", True)
    monkeypatch.setattr(py4j, "handlers", [])
    monkeypatch.setattr(py4j, "level", logging.NOTSET)
    if quiet:
        keep_py4j_quiet()
    logging.getLogger("py4j.clientserver").warning("Closing down clientserver connection")
    assert ("Logging error" in capsys.readouterr().err) == (not quiet)
