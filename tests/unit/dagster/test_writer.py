"""The assets of a Spark job: its partitions, its arguments, and what it reports of its batches."""

import json
import re

import dagster as dg
import pytest
from pydantic import ValidationError

from dagster_harvest.components import OutboxComponent, outbox_definitions
from dagster_harvest.frame_job import arguments_of, asked
from dagster_harvest.settings import OutboxSettings
from dagster_harvest.writer import written_assets
from dagster_harvest.writer_settings import RecordColumns, SparkWriterSettings
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

FIRST, LAST = "2013-01-01", "2013-01-02"
BATCH = {"batch": "day", "status": "promoted", "rows": 3}
FUNCTION = {"function": "shop_jobs.orders.frame", "records": {"key": "order_id"}}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Run the load job with a writer module that runs this code; return the result and the metadata of each asset and
    partition."""
    config = tmp_path / "reaper.yaml"
    config.write_text("harvest: {dataSource: host=127.0.0.1 dbname=none user=nobody, leaderGroupID: g}")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(code, first=FIRST, last=FIRST, config=config, **attributes):
        (tmp_path / "a_writer.py").write_text("import json, sys\n" + code)
        wanted = {"module": "a_writer", "table": "orders", "start": FIRST, **attributes}
        settings = OutboxSettings(
            name="shop", topics=["orders"], config_file=str(config), writer=SparkWriterSettings(**wanted)
        )
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        with dg.DagsterInstance.ephemeral() as instance:
            return dg.materialize(
                [written_assets(settings, settings.writer)],
                instance=instance,
                tags=tags if settings.writer.partitions != "none" else {},
                resources=outbox_definitions(settings).resources,
                raise_on_error=False,
            )

    return run


def printing(*lines):
    return f"for line in {lines!r}:\n    print(line)\n"


def metadata(result):
    """Return the metadata of each materialization, by the last part of the asset's key and the partition."""
    made = [event.materialization for event in result.get_asset_materialization_events()]
    return {
        (each.asset_key.path[-1], each.partition): {name: value.value for name, value in each.metadata.items()}
        for each in made
    }


def test_batches_are_numbers_of_the_run(load):
    result = load(printing("reads", json.dumps(BATCH), json.dumps({"summary": {"seconds": 2.0}})))
    assert result.success
    numbers = metadata(result)["orders", FIRST]
    assert (numbers["rows"], numbers["dagster/row_count"], numbers["batches"], numbers["seconds"]) == (3, 3, 1, 2.0)
    assert (numbers["status"], numbers["promoted_rows"], numbers["batches_promoted_before"]) == ("promoted", 3, 0)


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
    result = load(printing(*lines))
    assert not result.success
    assert result.get_asset_materialization_events() == []
    failure = result.failure_data_for_node("shop_written").user_failure_data
    assert "a_writer" in failure.description
    assert "batch" in failure.metadata["next_step"].value


def test_what_a_module_raises_is_what_the_run_says(load):
    result = load("raise LookupError('no price of today')\n")
    failure = result.failure_data_for_node("shop_written").user_failure_data
    assert failure.description.startswith("a_writer failed: ")
    assert failure.description.endswith("LookupError: no price of today")


def test_a_configuration_file_that_is_not_there_is_what_the_run_says(load):
    result = load(printing(json.dumps(BATCH)), config="/nowhere/reaper.yaml")
    failure = result.failure_data_for_node("shop_written").user_failure_data
    assert failure.description.startswith("there is no configuration file /nowhere/reaper.yaml")
    assert failure.metadata["next_step"].value


ECHO = "print(json.dumps({'batch': ' '.join(sys.argv[1:]), 'status': 'promoted', 'rows': len(sys.argv)}))\n"
TIMES = ["{first_key}", "{last_key}", "{start}", "{end}", "{outbox}", '{"a": 1}']


def test_a_module_runs_once_for_a_range_and_is_told_its_limits(load, capfd):
    result = load(ECHO, last=LAST, arguments=TIMES)
    assert result.success
    assert {numbers["batches"] for numbers in metadata(result).values()} == {1}
    said = " ".join([FIRST, LAST, "2013-01-01T00:00:00+00:00", "2013-01-03T00:00:00+00:00", "outbox", '{"a": 1}'])
    assert json.dumps(said) in capfd.readouterr().err


def test_a_module_that_takes_a_key_runs_for_each_partition_and_each_has_its_own_numbers(load):
    code = "print(json.dumps({'batch': 'b', 'status': 'promoted', 'rows': int(sys.argv[1][-1])}))\n"
    result = load(code, last=LAST, arguments=["{key}"])
    found = {place: numbers["dagster/row_count"] for place, numbers in metadata(result).items()}
    assert found == {
        ("orders", FIRST): 1,
        ("orders", LAST): 2,
        ("shop_outbox", FIRST): 1,
        ("shop_outbox", LAST): 2,
    }


def test_a_batch_that_names_its_partition_is_counted_there(load):
    lines = [json.dumps({**BATCH, "partition": FIRST}), json.dumps({**BATCH, "partition": LAST, "rows": 5})]
    found = metadata(load(printing(*lines), last=LAST, table=None))
    assert {place: numbers["rows"] for place, numbers in found.items()} == {
        ("shop_outbox", FIRST): 3,
        ("shop_outbox", LAST): 5,
    }


def test_where_a_partition_is_not_reported_the_sum_is_shown(load):
    found = metadata(load(printing(json.dumps({**BATCH, "partition": FIRST})), last=LAST, table=None))
    assert {(numbers["rows"], numbers["batches"]) for numbers in found.values()} == {(3, 1)}


def test_hours_are_partitions_in_a_zone_of_ones_own(load, capfd):
    hours = {"partitions": "hourly", "timezone": "Europe/Vienna", "arguments": ["{start}", "{end}"]}
    result = load(ECHO, first="2013-01-01-05:00", last="2013-01-01-06:00", **hours)
    assert set(metadata(result)) == {
        (asset, f"2013-01-01-0{hour}:00") for asset in ("orders", "shop_outbox") for hour in (5, 6)
    }
    assert "2013-01-01T05:00:00+01:00 2013-01-01T07:00:00+01:00" in capfd.readouterr().err


def test_without_partitions_a_run_is_a_batch(load):
    found = metadata(load(printing(json.dumps(BATCH)), partitions="none", start=None))
    assert {place: numbers["rows"] for place, numbers in found.items()} == {
        ("orders", None): 3,
        ("shop_outbox", None): 3,
    }


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "names neither of `function`"),
        ({**FUNCTION, "module": "a.b", "start": FIRST}, "names both of `function`"),
        ({"function": "shop_jobs.orders.frame", "start": FIRST}, "records is missing"),
        ({"module": "a.b", "records": {"key": "id"}, "start": FIRST}, "records is for a `function`"),
        ({**FUNCTION, "arguments": ["--all"], "start": FIRST}, "arguments are for a `module`"),
        ({**FUNCTION, "batch_column": "batch", "start": FIRST}, "name the `table` too"),
        ({**FUNCTION, "function": "frame", "start": FIRST}, "function"),
        (FUNCTION, "start is missing"),
        ({**FUNCTION, "start": "1 May"}, "start"),
        ({**FUNCTION, "start": f"{FIRST}T00:00+01:00"}, "name the zone by `timezone`"),
        ({**FUNCTION, "start": FIRST, "timezone": "Vienna"}, "there is no time zone 'Vienna'"),
        ({**FUNCTION, "start": f"{FIRST}T05:00"}, "has a time of day"),
        ({**FUNCTION, "start": LAST, "end": FIRST}, "is not after start"),
        ({**FUNCTION, "start": FIRST, "partitions": "none"}, f"there is no {FIRST}"),
        ({"module": "a.b", "partitions": "none", "arguments": ["{key}"]}, "there is no key"),
        ({"module": "a.b", "start": FIRST, "arguments": ["{day}"]}, "has the unknown {day}"),
    ],
)
def test_a_writer_that_cannot_be_is_refused(attributes, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        SparkWriterSettings(**attributes)


@pytest.mark.parametrize(
    ("topics", "topic", "message"),
    [
        (["orders", "refunds"], None, "name that of the writer's records"),
        (["orders"], "bills", "is not among `topics`"),
    ],
)
def test_records_go_to_a_topic_of_the_outbox(topics, topic, message):
    records = RecordColumns(key="id", topic=topic)
    writer = SparkWriterSettings(function="shop_jobs.orders.frame", records=records, start=FIRST)
    with pytest.raises(ValidationError, match=message):
        OutboxSettings(name="shop", topics=topics, writer=writer)


@pytest.mark.parametrize("job", ["module: no_such_package.orders", "function: no_such_package.orders.frame"])
def test_a_job_that_is_not_installed_is_an_error_at_load(job):
    records = "" if job.startswith("module") else "records: {key: id}, "
    shop = OutboxComponent.resolve_from_yaml(
        f"name: shop\ntopics: [orders]\nwriter: {{{job}, {records}start: {FIRST}}}\n"
    )
    with pytest.raises(ConfigError, match=r"no module no_such_package\.orders") as refused:
        outbox_definitions(shop)
    assert refused.value.field == f"writer.{job.split(':')[0]}"


def test_a_writer_in_yaml_has_lists_and_texts():
    shop = OutboxComponent.resolve_from_yaml(
        "name: shop\ntopics: [orders]\nupstream: [raw/orders]\n"
        "writer: {function: dagster_harvest.frame_job.main, start: 2026-01-01,"
        " records: {key: [shop, id], value: body, headers: {event-id: id}, order_by: [at]}}\n"
    )
    assert (shop.writer.records.key, shop.writer.records.value) == (["shop", "id"], "body")
    graph = outbox_definitions(shop).resolve_asset_graph()
    assert graph.get(shop.outbox_key).parent_keys == {dg.AssetKey(["raw", "orders"])}
    assert shop.business_key is None


def test_a_function_is_called_with_what_it_asks_for():
    window = {"key": FIRST, "start": f"{FIRST}T00:00:00+00:00", "end": f"{LAST}T00:00:00+00:00"}
    given = arguments_of(window)
    assert (given["end"] - given["start"]).days == 1
    assert arguments_of({"key": "run", "start": None, "end": None}) == {}
    names = {"spark", *given}
    assert asked(lambda spark, start, limit=3: None, "f", names) == {"spark", "start"}
    assert asked(lambda **everything: None, "f", names) == names
    assert asked(lambda: None, "f", names) == set()
    with pytest.raises(ConfigError, match="the parameter day, for which there is no value"):
        asked(lambda day: None, "shop_jobs.frame", names)
