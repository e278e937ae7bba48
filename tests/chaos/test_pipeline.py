"""A table of Postgres, copied and followed while it changes, into Kafka, a second table and Parquet, through kills."""

import io

import pytest
from rich.console import Console

from infra.demo.place import Place
from infra.demo.progress import Progress
from infra.demo_pipeline.run import PipelineDemoPlan, run

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(PipelineDemoPlan(rows=4_000, changes=400, kills=3, copy_kills=1), id="short"),
        pytest.param(PipelineDemoPlan(seed=7), id="whole", marks=[pytest.mark.long, pytest.mark.timeout(400)]),
    ],
)
def test_every_destination_ends_equal_to_the_source(
    plan, dsn, make_topic, bootstrap_servers, tmp_path, record_property
):
    topic = make_topic(partitions=4)
    place = Place(dsn=dsn, bootstrap_servers=bootstrap_servers, topic=topic, group="unused")
    report = run(tmp_path, place, Progress(Console(file=io.StringIO())), plan)
    assert report["kills"] == plan.kills
    assert report["changes"] == plan.changes
    assert report["differences"] == 0, report
    assert report["unexplained_duplicates"] == 0, report
    assert all(each["rows"] == report["rows"] > 0 for each in report["destinations"].values())
    record_property("duplicates", report["duplicates"])
