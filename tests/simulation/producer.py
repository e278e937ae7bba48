"""librdkafka's producer, simulated: a queue, requests on the wire, and reports that are served by poll and flush.

It goes on while the program does something else. A message on the wire arrives though its process is frozen or killed;
one in the queue leaves when the process thaws, unless it has expired. One that was given up may have arrived.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from tests.simulation.kafka import error as failure
from tests.simulation.kafka import origin
from tests.simulation.scheduler import Killed

_BATCH = 6
_LINGER_SECONDS = 0.004
_LATE_SECONDS = 1.7
"""Longest time that a request is on the wire; a successor waits longer than this."""


@dataclass(slots=True, eq=False)
class Sent:
    """A message on its way."""

    topic: str
    value: object
    key: str
    partition: int
    report: object
    headers: object
    at: float
    answered: bool = False
    """True once its report was made."""


class Producer:
    """A `KafkaProducer`. `world` has the broker, the faults, and hears of what is handed over and what comes of it."""

    def __init__(self, world, settings):
        self._world, self._broker, self._scheduler = world, world.broker, world.scheduler
        self.owner = self._scheduler.current.owner
        self.process, _ = self.owner
        self._id = settings.get("transactional.id")
        self._gapless = bool(settings.get("enable.gapless.guarantee"))
        self._hear = settings.get("on_delivery")
        self._only_errors = settings.get("delivery.report.only.error", False)
        self._most = settings.get("max.in.flight.requests.per.connection", 5)
        self._timeout_seconds = int(settings.get("message.timeout.ms", 300_000)) / 1000
        self._queue, self._reports = deque(), deque()
        self._wire = {}  # Sent -> None, in order
        self._requests = 0
        self._last_arrival = 0.0
        self._is_due = False  # to transmit
        self._waiting = None  # the task that polls
        self._fatal = self._broken = None
        self._says_fatal = False
        self._epoch = None
        self._is_open = self._is_ending = False

    def produce(
        self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, *_, headers=None, **__
    ):
        if self.process.dead:
            raise Killed
        error = self._fatal or self._broken
        if error is None and self._id is not None and (self._is_ending or not self._is_open):
            error = failure(KafkaError._STATE, "no transaction")
        if error is not None:
            raise KafkaException(error)
        report = callback or on_delivery or self._hear
        self._queue.append(Sent(topic, value, key, partition, report, headers, self._scheduler.now))
        self._world.produced(self.owner, *origin(headers), value)
        self._transmit_after(_LINGER_SECONDS)

    def __len__(self):
        return len(self._queue) + len(self._wire) + len(self._reports)

    def poll(self, timeout):
        self._wait(timeout, lambda: bool(self._reports))
        return self._serve()

    def flush(self, timeout):
        self._transmit_after(0.0)
        self._wait(timeout, lambda: not self._queue and not self._wire)
        self._serve()
        return len(self)

    def purge(self, *, in_queue=True, in_flight=True, **_named):
        if in_queue:
            self._give_up([self._queue.popleft() for _ in range(len(self._queue))], KafkaError._PURGE_QUEUE)
        if in_flight and self._wire:
            self._give_up(list(self._wire), KafkaError._PURGE_INFLIGHT)
            if self._gapless:
                self._die(KafkaError._GAPLESS_GUARANTEE)

    def close(self):
        if self._is_open and self._fatal is None:
            self._travel("abort")
            self._broker.abort(self._id, self._epoch)
            self._say("abort", "ok")
        self._is_open = False
        return True

    def list_topics(self, _topic, _timeout):
        self._travel("list topics")

    # -- transactions

    def init_transactions(self, _timeout):
        if self._epoch is not None:
            raise KafkaException(failure(KafkaError._STATE, "initialized before"))
        self._world.promises.takes(self.owner, self._id)
        self._travel("init")
        epoch = self._broker.begin(self._id)
        self._travel("init answered")
        self._epoch = epoch

    def begin_transaction(self):
        error = self._fatal or self._broken
        if error is None and (self._epoch is None or self._is_open):
            error = failure(KafkaError._STATE, "not initialized, or in the midst of a transaction")
        if error is not None:
            raise KafkaException(error)
        self._is_open = True
        self._say("begin", "ok")

    def commit_transaction(self, timeout):
        self._say("commit", "invoke")
        self.flush(timeout)
        error = self._fatal or self._broken
        if error is None and len(self):
            error = failure(KafkaError._TIMED_OUT, "not delivered")
        if error is not None:
            self._say("commit", "fail")
            raise KafkaException(error)
        self._is_ending = True
        try:
            self._end_transaction(timeout)
        except BaseException:
            self._say("commit", "info")
            raise
        self._is_open = self._is_ending = False
        self._say("commit", "ok")

    def _end_transaction(self, timeout):
        fault, answers = self._world.faults.strike("commit"), []
        self._scheduler.pause(0.0005)  # frozen now, it asks when it thaws
        delay = self._delay(_LATE_SECONDS if fault in {"slow", "late"} else 0.0)
        if fault != "cut":
            self._scheduler.after(delay, lambda: answers.append(self._broker.commit(self._id, self._epoch)))
        self._scheduler.pause((0.1 if fault == "late" else min(timeout, delay)) + 0.001)
        if not answers or fault == "lost":
            raise KafkaException(failure(KafkaError._TIMED_OUT, "no answer"))
        if not answers[0]:
            self._fatal = failure(KafkaError._FENCED, "fenced", fatal=True)
            raise KafkaException(self._fatal)

    def _travel(self, name):
        fault = self._world.faults.strike(name)
        self._scheduler.pause(self._delay(0.0))
        if fault in {"cut", "refused", "lost", "late"}:
            raise KafkaException(failure(KafkaError._TIMED_OUT, "no answer"))

    def _say(self, step, how):
        self._world.tell(self.owner, "transaction", how, transactional_id=self._id, step=step)

    # -- the client's own thread

    def _transmit_after(self, seconds):
        if not self._is_due or seconds == 0:
            self._is_due = True
            self._scheduler.after(seconds, self._transmit)

    def _transmit(self):
        self._is_due = False
        if self.process.dead or not self._queue:
            return
        if self.process.frozen_until > self._scheduler.now:
            self._is_due = True
            self._scheduler.at(self.process.frozen_until, self._transmit)
            return
        self._expire()
        while self._queue and self._requests < self._most:
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            self._wire |= dict.fromkeys(batch)
            self._requests += 1
            fault = self._world.faults.strike("request")
            late = self._scheduler.dice.uniform(0.0, _LATE_SECONDS) if fault else 0.0
            if self._scheduler.now < self._broker.slow_until:
                late = self._scheduler.dice.uniform(0.7, 1.0) * _LATE_SECONDS
            arrives = max(self._scheduler.now + self._delay(late if fault != "lost" else 0.0), self._last_arrival)
            self._last_arrival = arrives
            answer_seconds = self._delay(late if fault == "lost" else 0.0)
            self._scheduler.at(arrives, partial(self._arrive, batch, answer_seconds))
        if self._timeout_seconds:
            self._scheduler.after(self._timeout_seconds + 0.001, self._expire)

    def _arrive(self, batch, answer_seconds):
        error, offsets = self._broker.append(batch, self._id, self._epoch)
        self._scheduler.after(answer_seconds, partial(self._answer, batch, error, offsets))

    def _answer(self, batch, error, offsets):
        if self.process.dead:
            return
        if self.process.frozen_until > self._scheduler.now:
            self._scheduler.at(self.process.frozen_until, partial(self._answer, batch, error, offsets))
            return
        self._requests -= 1
        heard = [place for place, each in enumerate(batch) if each in self._wire]
        for place in heard:
            self._report(batch[place], error, offsets[place] if error is None else None)
        if error is not None and self._id is not None:
            self._fatal = error if error.fatal() else self._fatal
            self._broken = error
            self._give_up([self._queue.popleft() for _ in range(len(self._queue))], KafkaError._PURGE_QUEUE)
        elif error is not None and self._gapless:
            self._die(KafkaError._GAPLESS_GUARANTEE)
        self._transmit_after(0.0)

    def _expire(self):
        if not self._timeout_seconds or self.process.dead or self.process.frozen_until > self._scheduler.now:
            return
        before = self._scheduler.now - self._timeout_seconds
        old = [each for each in (*self._wire, *self._queue) if each.at <= before]
        if old:
            self._queue = deque(each for each in self._queue if each.at > before)
            self._give_up(old, KafkaError._MSG_TIMED_OUT)
            self._broken = failure(KafkaError._MSG_TIMED_OUT, "expired") if self._id else None

    def _die(self, code):
        if self._fatal is None:
            self._fatal = failure(code, "there would be a gap", fatal=True)
            self._says_fatal = True
        self._give_up([self._queue.popleft() for _ in range(len(self._queue))], KafkaError._PURGE_QUEUE)
        self._give_up(list(self._wire), code)

    def _give_up(self, messages, code):
        for each in messages:
            self._report(each, failure(code, "given up"), None)

    def _report(self, message, error, place):
        self._wire.pop(message, None)
        self._reports.append((message, error, place))
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    # -- the program's

    def _wait(self, timeout, is_enough):
        if self.process.dead:
            raise Killed
        until = self._scheduler.now + timeout
        while not is_enough() and self._scheduler.now < until:
            self._waiting = self._scheduler.current
            self._scheduler.pause(until - self._scheduler.now)
        self._waiting = None

    def _serve(self):
        served = 0
        while self._reports:
            message, error, place = self._reports.popleft()
            served += 1
            self._world.reported(self.process, message, error, place)
            if message.report is not None and (error is not None or not self._only_errors):
                key = message.key.encode() if isinstance(message.key, str) else message.key
                where = {"partition": place[0], "offset": place[1]} if place else {}
                message.report(error, Message(topic=message.topic, key=key, **where))
        if self._says_fatal:
            self._says_fatal = False
            raise KafkaException(self._fatal)
        return served

    def _delay(self, late):
        down = max(0.0, self._broker.down_until - self._scheduler.now)
        return down + late + self._scheduler.dice.uniform(0.0005, 0.004)
