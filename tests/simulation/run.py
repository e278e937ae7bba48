"""Run a seed: everything goes wrong for a while, then heals, and what was promised is looked at."""

from dataclasses import dataclass

from tests.simulation.plan import FAULTY_SECONDS, MODES, Plan, plan_of
from tests.simulation.world import World, seams

_PATIENCE_SECONDS = 25.0
_STEP_SECONDS = 0.1
_AFTERWARDS_SECONDS = 0.7
_SHOWN = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a run."""

    plan: Plan
    broken: list
    history: object
    turns: int

    @property
    def text(self):
        """Say what is wrong, and what happened last."""
        last = [f"  {each}" for each in self.history.events[-_SHOWN:]]
        return "\n".join([f"seed {self.plan.seed}: {self.broken[0]}", f"  {self.plan}", *self.broken[1:4], *last])


def run(seed, modes=MODES):
    """Run a seed, the same way each time."""
    plan = plan_of(seed, modes)
    world = World(plan)
    with seams(world):
        try:
            _drive(world)
            world.promises.check()
            world.last_poll()
        except AssertionError as error:
            world.promises.say(str(error))
        finally:
            world.scheduler.end()
    return Outcome(plan=plan, broken=world.promises.broken, history=world.history, turns=world.scheduler.turns)


def _drive(world):
    scheduler, until = world.scheduler, world.scheduler.now + FAULTY_SECONDS + _PATIENCE_SECONDS
    has_stopped = False
    while scheduler.now < until:
        _pause(world, _STEP_SECONDS)
        if not world.faults.are_over:
            continue
        world.release_parked()
        if not has_stopped and (leader := world.leading) is not None:
            leader.stop()  # in the midst of its work, with nothing going wrong
            has_stopped = True
        if has_stopped and world.writers.are_done and not _waiting(world):
            _pause(world, _AFTERWARDS_SECONDS)
            return
    world.promises.say(f"not drained: {_waiting(world)}")


def _waiting(world):
    database = world.database
    marked = sorted(database.rows) if world.plan.source == "mark" else []
    return [*world.promises.missing, *database.parked_ids, *database.parked, *marked]


def _pause(world, seconds):
    world.scheduler.pause(seconds)
    if world.scheduler.failure is not None:
        raise AssertionError(repr(world.scheduler.failure)) from world.scheduler.failure
