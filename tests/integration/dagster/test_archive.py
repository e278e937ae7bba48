"""The archive's asset: a sensor finds closed segments, a run archives one of them."""

import dagster as dg
import pytest
from dagster import DagsterInstance
from support.native import Native

from dagster_harvest.components import outbox_definitions
from dagster_harvest.resources import HarvesterResource
from dagster_harvest.settings import ArchiveSettings, OutboxSettings
from harvest_lib.archive import verify_archive

pytestmark = pytest.mark.full

SEGMENT = 10


@pytest.fixture
def native(dsn):
    return Native(dsn, size=SEGMENT)


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def archived(native, reaper, tmp_path, instance):
    """Let the sensor look once and run what it asks for; return what the sensor said and the run's result."""
    settings = OutboxSettings(
        name="shop", topics=["t"], config_file=str(reaper), archive=ArchiveSettings(url=str(tmp_path / "archive"))
    )
    repository = outbox_definitions(settings).get_repository_def()

    def look():
        resources = {settings.resource_key: HarvesterResource(config_file=str(reaper))}
        sensor, job = repository.get_sensor_def("shop_segments"), repository.get_job("shop_archive_segments")
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            with dg.build_sensor_context(instance, repository_def=repository, resources=resources) as context:
                said = sensor.evaluate_tick(context)
            for request in said.run_requests:
                return said, job.execute_in_process(
                    instance=instance, partition_key=request.partition_key, raise_on_error=False
                )
        return said, None

    return look


def test_each_closed_segment_is_a_partition_that_is_archived(native, archived, instance, tmp_path):
    native.write(2 * SEGMENT)
    for name in ("outbox_from_0", "outbox_from_10"):
        said, result = archived()
        assert [each.partition_key for each in said.run_requests] == [name]
        assert result.success
        (made,) = result.get_asset_materialization_events()
        assert (made.asset_key, made.partition) == (dg.AssetKey(["archive", "shop_archive"]), name)
        assert made.materialization.metadata["records"].value == SEGMENT - (name == "outbox_from_0")
    said, result = archived()
    assert result is None
    assert said.skip_message == "every closed segment is in the archive"
    assert [each.segment for each in verify_archive(str(tmp_path / "archive"))] == ["outbox_from_0", "outbox_from_10"]
    assert instance.get_materialized_partitions(dg.AssetKey(["archive", "shop_archive"])) == {
        "outbox_from_0",
        "outbox_from_10",
    }


def test_a_segment_that_cannot_be_archived_fails_its_run_and_is_tried_again(native, archived, tmp_path):
    native.write(SEGMENT)
    (tmp_path / "archive").write_text("no folder")
    _, result = archived()
    assert not result.success
    (failure,) = [each for each in result.all_events if each.is_step_failure]
    assert "could not be read" in failure.step_failure_data.user_failure_data.description
    (tmp_path / "archive").unlink()
    assert archived()[1].success
