"""A real Dagster answers what the operator asks: partitions, the work of a run, its end. Other tests ask a stub."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from support.waiting import eventually

from harvest_lib.airflow.dagster.client import DagsterClient
from harvest_lib.airflow.dagster.endpoint import from_url
from harvest_lib.airflow.dagster.request import Request, TaskAttempt
from harvest_lib.airflow.dagster.wait import end, outcome
from harvest_lib.local_stack.ports import keep_ports

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

DEFINITIONS = """
import time
import dagster as dg

@dg.asset(partitions_def=dg.DailyPartitionsDefinition("1990-01-01"))
def orders(context):
    return context.partition_key

@dg.asset(key=["shop", "plain"])
def plain():
    return 1

@dg.asset(partitions_def=dg.DynamicPartitionsDefinition(name="none"))
def dynamic():
    return 1

@dg.static_partitioned_config(partition_keys=["a", "b"])
def by_letter(key):
    return {}

@dg.op
def nothing():
    pass

@dg.op(config_schema={"seconds": int})
def sleep(context):
    time.sleep(context.op_config["seconds"])

@dg.job(config=by_letter)
def letters():
    nothing()

@dg.job
def sleeps():
    sleep()

defs = dg.Definitions(
    assets=[orders, plain, dynamic],
    jobs=[letters, sleeps, *(dg.define_asset_job(f"{each.key.path[-1]}_job", [each])
          for each in (orders, plain, dynamic)), dg.define_asset_job("mixed_job", [orders, plain])],
)
"""
COORDINATOR = "run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Return the address of a Dagster that starts runs itself, without a daemon."""
    folder = tmp_path_factory.mktemp("dagster")
    (folder / "definitions.py").write_text(DEFINITIONS)
    (folder / "dagster.yaml").write_text(COORDINATOR + "telemetry: {enabled: false}\n")
    port = keep_ports(folder / "ports.json", ["dagster"])["dagster"]
    command = [Path(sys.executable).parent / "dagster-webserver", "-f", "definitions.py", "-h", "127.0.0.1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-p", str(port)],
            cwd=folder,
            env={**os.environ, "DAGSTER_HOME": str(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"

    def answers():
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return httpx.get(f"{address}/server_info", trust_env=False).is_success
        except httpx.TransportError:
            return False

    try:
        eventually(answers, "the webserver answers", seconds=120)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def request(job_name, partition="", **run_config):
    return Request(
        job_name=job_name,
        location="",
        partition=partition,
        run_config=run_config,
        attempt=TaskAttempt(task=f"dag/run/{job_name}/{partition}", number=1),
        deadline=time.time() + 300,
        poll_seconds=0.2,
        patience_seconds=60,
    )


def wait(url, asked):
    async def ended():
        async with DagsterClient(from_url(url)) as client:
            return await outcome(client, asked)

    return asyncio.run(ended())


@pytest.mark.parametrize(
    ("job", "partition", "cause"),
    [
        ("orders_job", "", "is partitioned, and no partition is named"),
        ("orders_job", "1989-12-31", "has no partition '1989-12-31'"),
        ("orders_job", "nonsense", "has no partition 'nonsense'"),
        ("mixed_job", "", "is partitioned, and no partition is named"),
        ("letters", "", "is partitioned, and no partition is named"),
        ("letters", "c", "has no partition 'c'"),
        ("dynamic_job", "c", "has no partition 'c'"),
        ("sleeps", "a", "has no partitions"),
        ("plain_job", "a", "has no partitions"),
    ],
)
def test_a_partition_that_does_not_fit_its_job_is_refused(job, partition, cause, url):
    event = wait(url, request(job, partition))
    assert (event["outcome"], event["cause"]) == ("refused", f"the Dagster job {job} {cause}")
    if job == "letters":
        assert event["evidence"] == "its last partitions: a, b"
    if job == "dynamic_job":
        assert event["evidence"] == "it has no partition yet"


@pytest.mark.parametrize(
    ("job", "partition", "assets"),
    [
        ("orders_job", "1990-01-01", ["orders"]),
        ("letters", "b", []),
        ("plain_job", "", ["shop/plain"]),
        ("mixed_job", "2013-01-31", ["orders", "shop/plain"]),
    ],
)
def test_a_run_of_a_partition_says_what_it_materialized(job, partition, assets, url):
    event = wait(url, request(job, partition))
    assert (event["outcome"], event["assets"]) == ("succeeded", assets), event


def test_a_run_that_is_ended_is_canceled_and_can_be_ended_again(url, caplog):
    asked = request("sleeps", ops={"sleep": {"config": {"seconds": 300}}})

    async def ended():
        async with DagsterClient(from_url(url)) as client:
            waiting = asyncio.create_task(outcome(client, asked))
            while not any(run.status == "STARTED" for run in await client.runs_with(asked.attempt.tags)):
                assert not waiting.done(), waiting.result()
                await asyncio.sleep(0.2)
            await end(client, asked.attempt)
            event = await waiting
            await client.terminate(event["run_id"])
            return event

    event = asyncio.run(ended())
    assert (event["outcome"], event["cause"]) == ("refused", "the Dagster job sleeps was canceled in Dagster")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
