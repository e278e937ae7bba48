"""Faults: a share of all calls, by the dice, and disasters at times that the plan says."""

from tests.simulation.plan import FAULTY_SECONDS
from tests.simulation.scheduler import Killed

_OF_A_CALL = ("cut", "cut", "lost", "lost", "late", "refused", "slow", "kill", "freeze")
_OF_A_REQUEST = ("slow", "lost")
_SHORT_SECONDS, _LONG_SECONDS = 0.2, 4.5
_DOWN_SECONDS = 0.6


class Faults:
    """Strike calls, and bring disasters about, until everything heals."""

    def __init__(self, world, plan):
        self._world, self._scheduler, self._plan = world, world.scheduler, plan
        self._dice = world.scheduler.dice
        self.on = plan.rate > 0
        self._is_next_late = False  # of the checkpoints
        self.have_delayed = False  # a call, so that it took effect later
        self.have_frozen = False  # a leader, or have had two at a time
        self.hit_leaders = set()  # leader ids that may not have heard of what they did
        for seconds, what in plan.disasters:
            self._scheduler.after(seconds, lambda what=what: self._happen(what))
        self._scheduler.after(FAULTY_SECONDS, self._heal)

    @property
    def are_over(self):
        return self._scheduler.now >= 1_000.0 + FAULTY_SECONDS

    def strike(self, name):
        """Return what goes wrong with a call, or None. The caller's process may be killed or frozen by it."""
        if name == "save" and self._is_next_late:
            self._is_next_late = False
            self.have_delayed = True
            return "late"
        if not self.on or self._dice.random() >= self._plan.rate:
            return None
        if name == "request":
            return self._dice.choice(_OF_A_REQUEST)
        fault, process = self._dice.choice(_OF_A_CALL), self._scheduler.current.process
        self._world.history.fault(f"{fault} at {name} of {process.name}")
        self.hit_leaders.add(self._world.leaders.get(self._scheduler.current.owner))
        self.have_delayed = self.have_delayed or fault == "late"
        if fault == "kill":
            process.kill()
            raise Killed
        if fault == "freeze":
            self._freeze(process)
        return fault

    def _freeze(self, process):
        self.have_delayed = self.have_frozen = True
        self._world.promises.froze(process)
        process.frozen_until = self._scheduler.now + self._dice.uniform(_SHORT_SECONDS, _LONG_SECONDS)

    def _happen(self, what):
        self._world.history.fault(what)
        now, database, leader = self._scheduler.now, self._world.database, self._world.leading
        match what:
            case "crash":
                self._crash()
            case "crash once sent":
                self._world.broker.on_append = lambda _entry: self._crash()
            case "outage":
                self._world.broker.down_until = now + self._dice.uniform(0.1, _DOWN_SECONDS)
            case "slow wire":
                self._world.broker.slow_until = now + self._dice.uniform(0.1, _DOWN_SECONDS)
            case "late save":
                self._is_next_late = True
            case "rewind" if database.subscriptions and database.is_up:
                self._world.rewind()
            case "split":
                self.have_frozen = self.have_frozen or not self._plan.by_lock
                self._dice.choice(self._world.elections).split()
            case "kill" if leader is not None:
                leader.process.kill()
            case "freeze" if leader is not None:
                self._freeze(leader.process)
            case "cut off" if leader is not None:
                leader.cut_off_until = now + self._dice.uniform(_SHORT_SECONDS, _LONG_SECONDS)
            case "stop" if leader is not None:
                leader.stop()
            case "revoke" if leader is not None:
                leader.revoke()

    def _crash(self):
        database = self._world.database
        self._world.broker.on_append = lambda _entry: None
        if database.is_up:
            database.crash()
            self.hit_leaders.update(self._world.leaders.values())
            self._scheduler.after(self._dice.uniform(0.05, _DOWN_SECONDS), database.start)

    def _heal(self):
        self.on = self._is_next_late = False
        self._world.history.fault("all", "end")
        self._world.broker.poison.clear()
        self._world.broker.on_append = lambda _entry: None
        for each in self._world.harvesters:
            each.cut_off_until = 0.0
            each.process.frozen_until = min(each.process.frozen_until, self._scheduler.now + 1.0)
