"""The first worker of a new clone compiles what tests import; the others, which need the same, wait for that."""

import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harvest_lib.local_stack.state import locked


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect; one after the other until the folder of compiled modules, if there is one, says that one has."""
    done = Path(sys.pycache_prefix) / "collected" if sys.pycache_prefix else None
    with ExitStack() as held:
        if done and hasattr(session.config, "workerinput") and not done.exists():
            held.enter_context(locked(done.with_suffix(".lock")))
            if done.exists():
                held.close()
        result = yield
        if done:
            done.parent.mkdir(parents=True, exist_ok=True)  # nothing was compiled where that is switched off
            done.touch()
    return result
