"""A Dagster run is started once, found again after any restart, and what went wrong is said with cause and evidence.

Against a real HTTP server that speaks Dagster's GraphQL; that the questions are Dagster's is checked with its schema.
"""

import asyncio
import time
from itertools import count
from types import SimpleNamespace

import graphql
import pytest
from dagster_graphql.schema import create_schema
from support.dagster_stub import dagster_stub
from support.waiting import eventually

from harvest_lib.airflow.dagster import queries as dagster_queries
from harvest_lib.airflow.dagster import wait as dagster_wait
from harvest_lib.airflow.dagster.client import DagsterClient
from harvest_lib.airflow.dagster.endpoint import from_url
from harvest_lib.airflow.dagster.request import TASK_TAG, TRY_TAG, Request, TaskAttempt
from harvest_lib.airflow.dagster.wait import end, outcome

pytestmark = pytest.mark.quick

TASK = "dag/run/task/0"


@pytest.fixture
def dagster():
    with dagster_stub() as stub:
        yield stub


def request(number=1, **changes):
    values = {
        "job_name": "flights_job",
        "location": "",
        "partition": "",
        "run_config": {"ops": {}},
        "attempt": TaskAttempt(task=TASK, number=number),
        "deadline": time.time() + 600,
        "poll_seconds": 0.01,
        "patience_seconds": 600,
    }
    return Request(**{**values, **changes})


async def waited(stub, asked, url=""):
    async with DagsterClient(from_url(url or stub.url)) as client:
        return await outcome(client, asked)


def wait(stub, asked=None, url=""):
    return asyncio.run(waited(stub, asked or request(), url))


def at_first_poll(stub, change):
    """Return the end of a wait, during which `change` is called once the run was asked for."""

    async def changed():
        waiting = asyncio.create_task(waited(stub, request()))
        while not stub.polled:
            await asyncio.sleep(0.005)
        assert not waiting.done()
        change(waiting)
        return await waiting

    return asyncio.run(changed())


def tags(number=1):
    return {TASK_TAG: TASK, TRY_TAG: str(number)}


def test_a_run_is_started_where_its_job_is_and_waited_for(dagster):
    ended = at_first_poll(dagster, lambda _: dagster.runs["run-1"].update(status="SUCCESS"))
    assert ended == {"outcome": "succeeded", "assets": [], "run_id": "run-1", "url": f"{dagster.url}/runs/run-1"}
    run = dagster.runs["run-1"]
    assert {tag["key"]: tag["value"] for tag in run["tags"]} == tags()
    assert run["selector"]["repositoryLocationName"] == "place"
    assert run["config"] == {"ops": {}}


def test_a_partition_is_named_by_dagsters_tag(dagster):
    dagster.next_status = "SUCCESS"
    dagster.partitions["flights_job"] = ["2013-01-30", "2013-01-31", "2013-02-01"]
    for number, each in enumerate(dagster.partitions["flights_job"], 1):
        attempt = TaskAttempt(task=f"dag/run/task/{number}/0", number=1)
        assert wait(dagster, request(attempt=attempt, partition=each))["outcome"] == "succeeded"
        assert {"key": "dagster/partition", "value": each} in dagster.runs[f"run-{number}"]["tags"]


@pytest.mark.parametrize(
    ("has", "partition", "cause", "evidence"),
    [
        (["a", "b", "c", "d"], "", "is partitioned, and no partition is named", "its last partitions: b, c, d"),
        (["a", "b"], "x", "has no partition 'x'", "its last partitions: a, b"),
        ([], "x", "has no partition 'x'", "it has no partition yet"),
        (None, "x", "has no partitions", "partition is 'x'"),
    ],
    ids=["none named", "an unknown one", "one of none", "not partitioned"],
)
def test_a_partition_that_does_not_fit_its_job_is_refused_before_a_run(has, partition, cause, evidence, dagster):
    dagster.partitions = {} if has is None else {"flights_job": has}
    event = wait(dagster, request(partition=partition))
    assert (event["outcome"], event["evidence"]) == ("refused", evidence)
    assert event["cause"] == f"the Dagster job flights_job {cause}"
    assert "partition" in event["next_step"]
    assert dagster.launched() == 0
    assert "run_id" not in event


def test_of_many_partitions_only_the_asked_one_is_read(dagster):
    dagster.partitions["flights_job"] = [str(each) for each in range(100_000)]
    dagster.next_status = "SUCCESS"
    before = dagster.sent
    assert wait(dagster, request(partition="99999"))["outcome"] == "succeeded"
    assert dagster.sent - before < 5_000


def test_a_webserver_that_fails_over_the_partition_is_asked_again(dagster):
    dagster.partitions["flights_job"] = ["a"]
    dagster.next_status = "SUCCESS"

    async def recovers():
        waiting = asyncio.create_task(waited(dagster, request(partition="a")))
        dagster.http_status = 500
        while len(dagster.asked) < 3:
            await asyncio.sleep(0.005)
        dagster.http_status = 200
        return await waiting

    assert asyncio.run(recovers())["outcome"] == "succeeded"


def test_a_wait_begun_anew_finds_the_run_and_starts_no_second(dagster):
    with pytest.raises(asyncio.CancelledError):
        at_first_poll(dagster, lambda waiting: waiting.cancel())
    dagster.runs["run-1"]["status"] = "SUCCESS"
    assert wait(dagster)["run_id"] == "run-1"
    assert dagster.launched() == 1


@pytest.mark.parametrize(
    ("changes", "outcomes", "launched"),
    [
        ({}, ["refused", "refused"], 0),
        ({"restart_canceled": True}, ["failed", "succeeded"], 1),
        ({"is_in_worker": True}, ["refused", "succeeded"], 1),
    ],
    ids=["as it is", "if asked", "in a worker, which itself may have"],
)
def test_a_run_that_a_person_canceled_is_not_started_again(changes, outcomes, launched, dagster):
    dagster.add("CANCELED", **tags())
    dagster.next_status = "SUCCESS"
    first, later = (wait(dagster, request(number, **changes)) for number in (1, 2))
    assert [first["outcome"], later["outcome"]] == outcomes
    assert (first["run_id"], "canceled" in first["cause"]) == ("run-1", True)
    assert dagster.launched() == launched


def test_the_newer_of_two_runs_was_not_canceled_by_a_person(dagster):
    dagster.add("FAILURE", **tags())
    dagster.add("CANCELED", **tags())
    dagster.next_status = "SUCCESS"
    assert wait(dagster)["cause"] == "the Dagster job flights_job failed"
    assert wait(dagster, request(2))["run_id"] == "run-3"


@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE"])
def test_a_wait_begun_anew_after_the_runs_end_takes_its_end(status, dagster):
    dagster.add(status, **tags())
    assert wait(dagster)["outcome"] == ("succeeded" if status == "SUCCESS" else "failed")
    assert dagster.launched() == 0


def test_a_retried_task_takes_the_run_of_an_earlier_try_unless_it_failed(dagster):
    dagster.next_status = "SUCCESS"
    dagster.add("SUCCESS", **tags(1))
    assert wait(dagster, request(2))["run_id"] == "run-1"
    dagster.runs["run-1"]["status"] = "FAILURE"
    assert wait(dagster, request(2))["run_id"] == "run-2"
    assert dagster.launched() == 1


def test_an_answer_lost_on_the_way_starts_nothing_twice(dagster):
    dagster.drop_launch_answers = 1
    dagster.next_status = "SUCCESS"
    assert wait(dagster)["run_id"] == "run-1"
    assert dagster.launched() == 1


def test_of_two_runs_started_at_once_the_older_counts_and_the_newer_is_ended(dagster):
    dagster.before_launch = lambda: dagster.add("SUCCESS", **tags())
    assert wait(dagster)["run_id"] == "run-1"
    assert dagster.runs["run-2"]["status"] == "CANCELED"
    assert wait(dagster)["run_id"] == "run-1"


def test_a_failed_run_is_told_with_its_first_cause(dagster):
    dagster.next_status, dagster.failure = "FAILURE", "column delay is of type text"
    event = wait(dagster)
    assert event["outcome"] == "failed"
    assert event["cause"] == "the Dagster job flights_job failed"
    assert event["evidence"] == "flights: column delay is of type text"
    assert event["next_step"] == f"check {dagster.url}/runs/run-1"


@pytest.mark.parametrize(
    ("steps", "checks", "cause"),
    [
        ([], [], "ran no step"),
        (["SKIPPED"], [[("lost", True)]], "ran no step"),
        (["SUCCESS"], [[("lost", True), ("unknown", None)]], "left checks unevaluated"),
        (["SUCCESS"], [[("lost", True)], [("unknown", None)]], "left checks unevaluated"),
    ],
    ids=["nothing", "skipped", "a check", "a check on the second page"],
)
def test_a_run_that_succeeded_and_proves_nothing_fails_for_good(steps, checks, cause, dagster):
    dagster.next_status, dagster.steps, dagster.checks = "SUCCESS", steps, checks
    ended = wait(dagster)
    assert ended["outcome"] == "refused"
    assert cause in ended["cause"]
    assert "unknown" in ended["evidence"] or cause == "ran no step"
    assert wait(dagster, request(2, allow_empty=True))["outcome"] == "succeeded"


def test_a_run_whose_checks_were_all_evaluated_counts_also_when_one_failed(dagster):
    """Of a check that fails and does not block, Dagster says that the run succeeded."""
    dagster.next_status, dagster.checks = "SUCCESS", [[("lost", True)], [("duplicates", False)]]
    assert wait(dagster)["outcome"] == "succeeded"


def test_an_unknown_job_is_refused_with_those_there_are(dagster):
    event = wait(dagster, request(job_name="flight_job"))
    assert event["outcome"] == "refused"
    assert "no job 'flight_job'" in event["cause"]
    assert event["evidence"] == "its jobs: flights_job"


def test_a_job_in_two_places_wants_the_place(dagster):
    dagster.jobs["other"] = ["flights_job"]
    dagster.next_status = "SUCCESS"
    assert wait(dagster)["evidence"] == "place, other"
    assert wait(dagster, request(location="other"))["outcome"] == "succeeded"
    assert dagster.runs["run-1"]["selector"]["repositoryLocationName"] == "other"


def test_a_code_location_that_does_not_load_may_still_do_so(dagster):
    jobs, dagster.jobs, dagster.broken = dagster.jobs, {}, {"place": "no module named flights"}
    event = wait(dagster, request(patience_seconds=0.05))
    assert (event["outcome"], "no module named flights" in event["evidence"]) == ("failed", True)

    async def comes_back():
        waiting = asyncio.create_task(waited(dagster, request()))
        before = len(dagster.asked)
        while len(dagster.asked) < before + 4:
            await asyncio.sleep(0.005)
        dagster.jobs, dagster.broken, dagster.next_status = jobs, {}, "SUCCESS"
        return await waiting

    assert asyncio.run(comes_back())["outcome"] == "succeeded"


@pytest.mark.parametrize("status", [0, 503])
def test_a_dagster_that_does_not_answer_is_borne_for_a_while(status, dagster, monkeypatch):
    dagster.http_status = status or 200
    url = "http://user:canary@127.0.0.1:1" if not status else ""
    looks = count()  # at a clock that goes on by a second with each
    monkeypatch.setattr(dagster_wait, "time", SimpleNamespace(monotonic=lambda: next(looks), time=time.time))
    event = wait(dagster, request(patience_seconds=3), url)
    assert next(looks) == 5, "at the start, and after each of four questions"
    assert event["outcome"] == "failed"
    assert "answer" in event["cause"]
    assert "DAGSTER_URL" in event["next_step"] or status
    assert "canary" not in str(event)


def test_wrong_credentials_are_refused_at_once_and_right_ones_are_sent(dagster):
    dagster.password = "canary"
    dagster.next_status = "SUCCESS"
    event = wait(dagster, url=dagster.url.replace("//", "//user:wrong-canary@"))
    assert (event["outcome"], "credentials" in event["next_step"]) == ("refused", True)
    assert "canary" not in str(event)
    event = wait(dagster, url=dagster.url.replace("//", "//user:canary@"))
    assert (event["outcome"], event["url"]) == ("succeeded", f"{dagster.url}/runs/run-1")


def test_the_time_given_ends_the_wait_and_not_the_run(dagster):
    event = wait(dagster, request(deadline=time.time() + 0.1))
    assert (event["outcome"], event["evidence"]) == ("failed", "its status is STARTED")
    assert dagster.runs["run-1"]["status"] == "STARTED"


def test_a_run_that_was_deleted_is_not_waited_for(dagster):
    dagster.add("STARTED", **tags())
    assert "deleted" in at_first_poll(dagster, lambda _: dagster.runs.clear())["cause"]


def test_ending_the_task_ends_its_run_and_no_other(dagster):
    dagster.add("STARTED", **tags())
    dagster.add("SUCCESS", **tags())
    dagster.add("STARTED", **{TASK_TAG: "another"})

    async def ended():
        async with DagsterClient(from_url(dagster.url)) as client:
            await end(client, TaskAttempt(task=TASK, number=1))

    asyncio.run(ended())
    assert [run["status"] for run in dagster.runs.values()] == ["CANCELED", "SUCCESS", "STARTED"]
    eventually(lambda: dagster.asked.count("HarvestTerminate") == 1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"__typename": "TerminateRunFailure", "message": "cannot", "run": {"status": "QUEUED"}},
            ["goes on: Dagster does not end the run run-1, which is QUEUED", "cannot", "Force termination"],
        ),
        ({"__typename": "UnauthorizedError", "message": "not you"}, ["does not end the run run-1\n", "not you"]),
        ({"__typename": "TerminateRunFailure", "message": "over", "run": {"status": "SUCCESS"}}, []),
    ],
    ids=["queued", "not allowed", "has ended meanwhile"],
)
def test_a_run_that_dagster_does_not_end_is_an_error_in_the_log(answer, said, dagster, caplog):
    dagster.add("STARTED", **tags())
    dagster.terminate_answer = answer

    async def ended():
        async with DagsterClient(from_url(dagster.url)) as client:
            await end(client, TaskAttempt(task=TASK, number=1))

    asyncio.run(ended())
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == bool(said)
    assert all(each in errors[0] for each in said)
    assert all(f"next step: terminate it at {dagster.url}/runs/run-1" in each for each in errors)


def test_a_dagster_that_does_not_answer_at_the_end_is_an_error_in_the_log(caplog):
    async def ended():
        async with DagsterClient(from_url("http://127.0.0.1:1")) as client:
            await end(client, TaskAttempt(task=TASK, number=1))

    asyncio.run(ended())
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "may go on: Dagster does not answer" in error


def test_a_newer_run_that_does_not_end_is_an_error_and_not_a_failure(dagster, caplog):
    dagster.before_launch = lambda: dagster.add("SUCCESS", **tags())
    dagster.terminate_answer = {"__typename": "TerminateRunFailure", "message": "cannot", "run": {"status": "STARTED"}}
    assert wait(dagster)["run_id"] == "run-1"
    assert "does not end the run run-2" in caplog.text


def test_the_log_shows_each_status_and_each_minute_of_waiting(dagster, monkeypatch, caplog):
    """The clock goes on by half a minute at each look: at the start, and after each answer."""
    caplog.set_level("INFO")
    dagster.next_status = "QUEUED"
    looks = count(0, 30)
    polls = iter(["QUEUED"] * 5 + ["STARTING", "STARTED", "STARTED", "STARTED", "SUCCESS"])

    def monotonic():
        at = next(looks)
        if at and "run-1" in dagster.runs:
            dagster.runs["run-1"]["status"] = next(polls, "SUCCESS")
        return at

    monkeypatch.setattr(dagster_wait, "time", SimpleNamespace(monotonic=monotonic, time=time.time))
    assert wait(dagster)["outcome"] == "succeeded"
    url = f"{dagster.url}/runs/run-1"
    assert [text for text in caplog.messages if text.startswith("the Dagster run")] == [
        f"the Dagster run is QUEUED: {url}",
        f"the Dagster run is QUEUED for 60 s, and no step has begun: {url}",
        f"the Dagster run is QUEUED for 120 s, and no step has begun: {url}",
        f"the Dagster run is STARTING: {url}",
        f"the Dagster run is STARTED: {url}",
        f"the Dagster run is SUCCESS: {url}",
    ]


def test_the_assets_that_a_run_materialized_are_named_once(dagster):
    dagster.next_status = "SUCCESS"
    dagster.materialized = [["shop/orders", "flights"], ["flights"]]
    assert wait(dagster)["assets"] == ["flights", "shop/orders"]


def test_the_address_is_known_once_the_run_is(dagster):
    dagster.next_status, dagster.failure = "FAILURE", "no"
    known = []

    async def ended():
        async def note(url):
            known.append((url, dagster.polled))

        async with DagsterClient(from_url(dagster.url)) as client:
            return await outcome(client, request(), note)

    event = asyncio.run(ended())
    assert known == [(f"{dagster.url}/runs/run-1", False)]
    assert (event["outcome"], event["url"]) == ("failed", known[0][0])


def test_the_questions_are_dagsters():
    schema = create_schema().graphql_schema
    names = [name for name in vars(dagster_queries) if name.isupper() and not name.startswith("_")]
    assert {"LAUNCH", "PARTITION_KEYS", "WORK"} <= set(names)
    for name in names:
        assert graphql.validate(schema, graphql.parse(getattr(dagster_queries, name))) == []
