"""Time, chance and turns, all from one seed.

    task ──pause──► the earliest that is due: an event (a function, called at once) or a task, which gets the baton

A task is a real thread that runs only while it holds the one baton, so the product's own loops run as they are, and one
seed always gives one order. Tasks belong to a process, which may be frozen (its tasks get no turn until it thaws) or
killed: then whatever it asks for raises `Killed`, and nothing of it has any effect any more.
"""

import heapq
import random
import threading
from collections import deque
from concurrent.futures import Future
from itertools import count

_MOST_TURNS = 60_000
_LOOK_COSTS_SECONDS = 1e-6
"""Time that a look at the clock takes, so that a task waiting for it to pass does not wait for ever."""


class Killed(BaseException):
    """The process was killed: no handler for errors sees this."""


class Stuck(AssertionError):
    """The run does not come to an end."""


class Process:
    """Tasks that live and die together. `number` tells its lives apart."""

    def __init__(self, name, number=0):
        self.name, self.number = name, number
        self.dead = False
        self.frozen_until = 0.0
        self.on_death = []

    def kill(self):
        if not self.dead:
            self.dead = True
            for each in self.on_death:
                each()


class Task:
    """A thread and its turn. `shard` is the one that it harvests, if it does."""

    def __init__(self, process, shard=0):
        self.process, self.shard = process, shard
        self.turn = threading.Lock()
        self.turn.acquire()
        self.is_over = False
        self.waits = 0  # counts its waits, so that a turn which comes too late is known

    @property
    def owner(self):
        """Return in whose name it acts: its process, and the shard."""
        return self.process, self.shard


class Scheduler:
    """Run tasks and events in the order of their time. Made by the task that directs the run."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.now = 1_000.0
        self.turns = 0
        self.failure = None  # an error that killed a task and that nothing else reports
        self._is_told = False  # the director, of that
        self.current = self.director = Task(Process("director"))
        self._due = []
        self._order = count()
        self._tasks = []

    def seconds(self):
        """Return the time. A stand-in for the clock of the machine."""
        self.now += _LOOK_COSTS_SECONDS
        return self.now

    def at(self, time, event):
        """Have a function called at a time."""
        heapq.heappush(self._due, (time, next(self._order), event, 0))

    def after(self, seconds, event):
        """Have a function called later."""
        self.at(self.now + seconds, event)

    def start(self, process, body, shard=0):
        """Begin a task of a process."""
        task = Task(process, shard)
        self._tasks.append(task)
        threading.Thread(target=self._run, args=(task, body), name=f"simulated-{process.name}", daemon=True).start()
        heapq.heappush(self._due, (self.now, next(self._order), task, 0))
        return task

    def pause(self, seconds):
        """Let others have their turn for so long; raises Killed in a process that is dead."""
        task = self.current
        if task.process.dead:
            raise Killed
        self.wake(task, seconds)
        self._give_way(task)

    def sleep(self):
        """Give way until somebody wakes this task."""
        task = self.current
        if task.process.dead:
            raise Killed
        self._give_way(task)

    def wake(self, task, seconds=0.0):
        """Give a task its turn, which ends its present wait."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), task, task.waits))

    def end(self):
        """Kill all that is left and wait for its threads."""
        for task in self._tasks:
            if not task.is_over:
                task.process.dead = True
                self.wake(task)
        self._due = [each for each in self._due if isinstance(each[2], Task)]
        heapq.heapify(self._due)
        while any(not task.is_over for task in self._tasks):
            self.pause(1.0)

    def _run(self, task, body):
        task.turn.acquire()
        try:
            if not task.process.dead:
                body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the director raises it
            self.failure = self.failure or error
        task.is_over = True
        self._hand_over(task)

    def _give_way(self, task):
        self._hand_over(task)
        task.waits += 1
        if task.process.dead:
            raise Killed

    def _hand_over(self, task):
        """Call events until a task is due; give it the baton, and have it back when it is this task's turn again."""
        following = self._next()
        if following is task and not task.is_over:
            return
        self.current = following
        following.turn.release()
        if not task.is_over:
            task.turn.acquire()

    def _next(self):
        while True:
            self.turns += 1
            if self.turns == _MOST_TURNS:
                self.failure = self.failure or Stuck(f"still busy after {_MOST_TURNS} turns, at {self.now:.3f}")
            if self.failure is not None and not self._is_told:
                self._is_told = True
                return self.director
            time, _, what, waits = heapq.heappop(self._due)
            self.now = max(self.now, time)
            if not isinstance(what, Task):
                what()
            elif not what.is_over and (what.waits == waits or what.process.dead):
                if not what.process.dead and what.process.frozen_until > self.now:
                    heapq.heappush(self._due, (what.process.frozen_until, next(self._order), what, waits))
                else:
                    return what


class Stopping:
    """A stand-in for the event that asks a loop to stop."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self._is_set = False

    def is_set(self):
        return self._is_set

    def set(self):
        self._is_set = True

    def wait(self, seconds):
        if not self._is_set and seconds > 0:
            self._scheduler.pause(seconds)
        return self._is_set


class Answer(Future):
    """A future that is waited for in simulated time."""

    scheduler = None

    def result(self, timeout=None):
        self.exception(timeout)
        return super().result(0)

    def exception(self, timeout=None):
        until = self.scheduler.now + (timeout if timeout is not None else 1e9)
        while not self.done() and self.scheduler.now < until:
            self.scheduler.pause(min(0.002, until - self.scheduler.now))
        return super().exception(0)


class Asked:
    """A stand-in for a `CallThread`: calls are made one after the other by a task of the process's own."""

    def __init__(self, scheduler, source):
        self._scheduler, self._source = scheduler, source
        self._calls = deque()
        self._task = scheduler.start(scheduler.current.process, self._serve)
        self._waits = False

    def submit(self, call):
        answer = Answer()
        answer.scheduler = self._scheduler
        self._calls.append((call, answer))
        if self._waits:
            self._waits = False
            self._scheduler.wake(self._task)
        return answer

    def end(self, timeout_seconds=None):
        pass

    def _serve(self):
        while True:
            while self._calls:
                call, answer = self._calls.popleft()
                try:
                    answer.set_result(call(self._source))
                except Exception as error:  # noqa: BLE001 - the caller gets it
                    answer.set_exception(error)
            self._waits = True
            self._scheduler.sleep()


class CalledAtOnce:
    """A stand-in for `CallThread`: the caller waits for the answer there and then."""

    def __init__(self, argument, _name):
        self._argument = argument

    def submit(self, call):
        answer = Future()
        try:
            answer.set_result(call(self._argument))
        except Exception as error:  # noqa: BLE001 - as above
            answer.set_exception(error)
        return answer

    def end(self, timeout_seconds=None):
        pass
