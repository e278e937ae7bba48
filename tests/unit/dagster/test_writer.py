"""The load job: a writer module that does not say what became of a batch has loaded nothing that anybody knows of."""

import json

import dagster as dg
import pytest

from dagster_harvest.assets import written_assets
from dagster_harvest.components import outbox_definitions
from dagster_harvest.settings import OutboxSettings, SparkWriterSettings

pytestmark = pytest.mark.quick

DAY = {"dagster/asset_partition_range_start": "2013-01-01", "dagster/asset_partition_range_end": "2013-01-01"}
BATCH = {"batch": "day", "status": "promoted", "rows": 3}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Run the load job with a writer module that prints these lines."""
    config = tmp_path / "reaper.yaml"
    config.write_text("harvest: {dataSource: host=127.0.0.1 dbname=none user=nobody, leaderGroupID: g}")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*lines):
        (tmp_path / "a_writer.py").write_text(f"for line in {lines!r}:\n    print(line)\n")
        writer = SparkWriterSettings(module="a_writer")
        settings = OutboxSettings(name="shop", topics=["orders"], config_file=str(config), writer=writer)
        with dg.DagsterInstance.ephemeral() as instance:
            return dg.materialize(
                [written_assets(settings, writer)],
                instance=instance,
                tags=DAY,
                resources=outbox_definitions(settings).resources,
                raise_on_error=False,
            )

    return run


def test_batches_are_numbers_of_the_run(load):
    result = load("reads", json.dumps(BATCH), json.dumps({"summary": {"seconds": 2.0}}))
    assert result.success
    metadata = result.get_asset_materialization_events()[0].materialization.metadata
    assert (metadata["rows"].value, metadata["days"].value, metadata["seconds"].value) == (3, 1, 2.0)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("loaded 3 rows",),
        (json.dumps({"summary": {}}),),
        *((json.dumps({**BATCH, name: None}),) for name in ("batch", "status", "rows")),
        (json.dumps(BATCH), json.dumps({"batch": "another"})),
        (json.dumps({**BATCH, "rows": "3"}),),
    ],
    ids=["nothing", "prose", "summary", "no name", "no status", "no rows", "second", "text"],
)
def test_a_writer_that_does_not_say_what_became_of_a_batch_fails_the_run(load, lines):
    result = load(*lines)
    assert not result.success
    assert result.get_asset_materialization_events() == []
    failure = result.failure_data_for_node("shop_written").user_failure_data
    assert "a_writer" in failure.description
    assert "batch" in failure.metadata["next_step"].value
