"""What the tests of the commands share: a configuration file, and a way to run them as a person does."""

import os
import subprocess
import sys

import pytest

REAPER = """\
harvest:
  baseKafkaConfig:
    bootstrap.servers: {servers}
  producerKafkaConfig:
    compression.type: lz4
    delivery.timeout.ms: 10000
  leaderTopic: {group}.neli
  leaderGroupID: {group}
  dataSource: {dsn}
  outboxTable: outbox
  limits:
    minPollInterval: 100ms
    heartbeatTimeout: 5s
    maxInFlightRecords: 1000
    minMetricsInterval: 5s
    sendConcurrency: 4
    sendBuffer: 10
logging:
  level: Info
"""


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}


@pytest.fixture
def harvest(environment):
    def command(*arguments, **variables):
        return subprocess.run(
            [sys.executable, "-m", "harvest_lib.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            env={**environment, **variables},
            check=False,
        )

    return command


@pytest.fixture
def reaper(tmp_path, dsn, bootstrap_servers, group_id):
    file = tmp_path / "reaper.yaml"
    file.write_text(REAPER.format(servers=bootstrap_servers, group=group_id, dsn=dsn))
    return file
