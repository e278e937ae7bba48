"""Faults of the Kafka cluster."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from infra.chaos.faults.fault import Fault, Injection
from infra.chaos.system import System
from infra.chaos.writing import Writing


def _brokers(count: int, *, frozen: bool = False) -> Injection:
    @contextmanager
    def inject(system: System, draw: random.Random, _write: Callable[[], Writing]) -> Iterator[None]:
        chosen = draw.sample(range(1, len(system.kafka.brokers) + 1), count)
        processes = [system.kafka.brokers[number - 1] for number in chosen]
        for process in processes:
            process.suspend() if frozen else process.kill()
        try:
            yield
        finally:
            for number, process in zip(chosen, processes, strict=True):
                process.resume() if frozen else system.kafka.start_broker(number)
            system.await_cluster()

    return inject


FAULTS: Mapping[str, Fault] = {
    "broker-killed": Fault(promise="the other brokers continue", inject=_brokers(1), brokers=3),
    "broker-frozen": Fault(promise="the other brokers continue, or all wait for it", inject=_brokers(1, frozen=True)),
    "two-brokers-killed": Fault(promise="it waits, and continues", inject=_brokers(2), brokers=3),
}
