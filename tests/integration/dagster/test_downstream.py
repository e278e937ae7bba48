"""In a real Dagster instance each commit starts a run of the asset that follows its topic, also if several topics are
materialized in one tick. The times are recorded and do not decide."""

import random
import sys
import threading
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus, RunsFilter
from support.dagster_platform import Platform
from support.outbox import Outbox
from support.waiting import eventually

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(3_000)]

TOPICS, COMMITS = 10, 5
LOCATION = Path(__file__).parents[2] / "support" / "dagster_downstream.py"


class Follower:
    """A topic, and the asset that follows it."""

    def __init__(self, outbox, topic, instance):
        self.topic = topic
        self.committed = 0
        self._outbox = Outbox(outbox.dsn, topic)
        self._instance = instance
        self._key = dg.AssetKey(topic.replace(".", "_").replace("-", "_"))

    def commit(self, records):
        self._outbox.fill(records, keys=5)
        self.committed += records
        return time.time()

    def read(self):
        """Return the first run that has read every committed record; None before."""
        found = self._instance.fetch_materializations(self._key, limit=20, ascending=False).records
        reading = [each for each in found if each.asset_materialization.metadata["records"].value >= self.committed]
        return reading[-1].run_id if reading else None

    def requested_after(self, committed_at):
        """Return the seconds from a commit to the request of the run that has read it."""
        run_id = eventually(self.read, f"{self.topic} is followed", seconds=600)
        (record,) = self._instance.get_run_records(RunsFilter(run_ids=[run_id]))
        return record.create_timestamp.timestamp() - committed_at

    def close(self):
        self._outbox.close()


def test_each_commit_is_followed(tmp_path, outbox, make_topic, elected, record_property):
    topics = [make_topic(partitions=1) for _ in range(TOPICS)]
    variables = {"TEST_TOPIC": ",".join(topics), "TEST_CONFIG": str(elected)}
    drawn, seconds, failed = random.Random(57), [], []
    with Platform(tmp_path / "dagster", file=LOCATION, **variables) as platform:
        followers = [Follower(outbox, topic, platform.instance) for topic in topics]
        plans = [[drawn.uniform(0, 70) for _ in range(COMMITS)] for _ in followers]

        def follow(follower, pauses):
            try:
                for pause in pauses:
                    threading.Event().wait(pause)
                    seconds.append(follower.requested_after(follower.commit(3)))
            except BaseException as error:  # noqa: BLE001 - the test raises it
                failed.append(error)

        try:
            eventually(platform.active_runs, "the daemon runs", seconds=240)
            threads = [threading.Thread(target=follow, args=each) for each in zip(followers, plans, strict=True)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not platform.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE]))
        except BaseException:
            sys.stderr.write(platform.log()[-5000:])
            raise
        finally:
            for follower in followers:
                follower.close()
    record_property("requested_seconds", sorted(round(each, 1) for each in seconds))
    assert not failed
    assert len(seconds) == TOPICS * COMMITS
