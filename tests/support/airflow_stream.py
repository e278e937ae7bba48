"""The stream of a watcher of an outbox, as Airflow's triggerer drives it, in a process of its own: importing Airflow
seizes logging and a home folder.

It prints as JSON what a watcher did at each step. Events are *stored* when this program says so.
"""

import asyncio
import json
import os
import sys
import time

import psycopg
from airflow.triggers.shared_stream import SharedStreamManager

from harvest_lib.airflow.hooks.outbox import HarvestHook
from harvest_lib.airflow.triggers import settling
from harvest_lib.airflow.triggers.outbox_events import OutboxEventTrigger
from harvest_lib.airflow.watched_outbox import WatchedOutbox, WatchSettings

WRITE = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('orders', 'k', 'secret')"
DELIVERED = """
SELECT (checkpoint ->> 'delivered')::int, (checkpoint #> '{position,after}')::int,
  checkpoint #>> '{position,prev}' = '1:1:' FROM outbox_subscriptions
WHERE subscription = 'watcher'
"""
OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
_SECONDS = 60


class Triggerer:
    """As much of a triggerer as a single watcher needs."""

    def __init__(self):
        self.trigger = OutboxEventTrigger(name="watcher", start="beginning", poll_seconds=0.05)
        self.streams = SharedStreamManager()
        self.events = []
        self.task = asyncio.create_task(self._run())

    async def _run(self):
        key = self.trigger.shared_stream_key()
        try:
            stream = self.streams.subscribe(trigger_id=1, trigger=self.trigger, key=key)
            async for event in self.trigger.filter_shared_stream(stream):
                self.events.append((event.payload, self.streams.bind_pending_event(trigger_id=1, key=key)))
        finally:
            await self.streams.unsubscribe(1, key)

    async def ids(self, count):
        """Return the ids of the first events, once there are so many."""
        await until(lambda: len(self.events) >= count)
        return [payload["ids"][0] for payload, _ in self.events]

    def store(self, *numbers):
        self.streams.confirm_persisted([self.events[number][1] for number in numbers])

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def until(condition):
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not in time")
        await asyncio.sleep(0.02)


async def steps(database):
    def delivered():
        return database.execute(DELIVERED).fetchone()[0]

    def position():
        return [*database.execute(DELIVERED).fetchone()]

    found = {}
    for _ in range(4):
        database.execute(WRITE)
    first = Triggerer()
    found["events"] = await first.ids(4)
    found["position before any is stored"] = position()
    first.store(1)
    (group,) = first.streams._groups.values()
    await until(lambda: not group._outstanding[1].pending and not group._advance_wakeup.is_set())
    found["position while the first is not stored"] = position()
    first.store(0)
    await until(lambda: not group._outstanding.keys() & {0, 1})
    found["position before what is stored has settled"] = position()
    settling.SETTLE_SECONDS = 0.0
    await until(lambda: delivered() == 2)
    await first.stop()
    found["position after the end"] = position()

    second = Triggerer()
    found["events after a restart"] = await second.ids(2)
    database.execute(OTHERS, [database.info.backend_pid])
    second.store(0)
    await until(lambda: delivered() == 3)
    other = WatchedOutbox(HarvestHook().config(), WatchSettings(name="watcher"))
    await asyncio.to_thread(other.open)
    second.store(1)
    found["events after another watcher came"] = await second.ids(3)
    found["position after another watcher came"] = position()
    second.store(2)
    await until(lambda: delivered() == 4)
    database.execute(WRITE)
    found["events in the end"] = await second.ids(4)
    other.close()
    settling.SETTLE_SECONDS = 3600.0
    (group,) = second.streams._groups.values()
    second.store(3)
    await until(lambda: not group._outstanding)
    await second.stop()  # as after a DAG was paused: Airflow may have dropped the event that it says it stored
    found["position after it ended too early"] = position()
    third = Triggerer()
    found["events after it ended too early"] = await third.ids(1)
    await third.stop()
    return found


if __name__ == "__main__":
    with psycopg.connect(os.environ["HARVEST_DSN"], autocommit=True) as connection:
        answer = json.dumps(asyncio.run(steps(connection)))
    sys.stdout.write(f"\n{answer}\n")
