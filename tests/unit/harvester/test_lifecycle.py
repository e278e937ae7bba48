"""The state of a harvester never goes back, whichever threads move it."""

import threading

import pytest
from support.fakes import FakeSource, FakeTable

from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.leadership import Solo

pytestmark = pytest.mark.quick

_TRIES_SECONDS = 0.3


class Racing(Harvest):
    """One that is stopped by another thread just as `stop` has found that it runs."""

    other = None
    _at = State.CREATED

    @property
    def _state(self):
        found = self._at
        if found is State.RUNNING and self.other is None:
            self.other = threading.Thread(target=self._go_to, args=(State.STOPPED,))
            self.other.start()
            self.other.join(_TRIES_SECONDS)  # it may not get that far: the lock is taken
        return found

    @_state.setter
    def _state(self, state):
        self._at = state


def test_a_stop_that_comes_as_it_ends_does_not_bring_it_back():
    harvest = Racing(HarvestConfig(leadership="solo"), source=FakeSource(FakeTable()), leadership=Solo())
    harvest._at = State.RUNNING
    harvest.stop()
    harvest.other.join()
    assert harvest.state is State.STOPPED


def test_a_signal_handler_may_stop_what_its_thread_is_starting():
    harvest = Harvest(HarvestConfig(leadership="solo"), source=FakeSource(FakeTable()), leadership=Solo())
    with harvest._state_lock:  # as `start` holds it
        harvest.stop()
    assert harvest.state is State.CREATED
