"""The promises of every reader of a pipeline, checked on each adaptor that has one."""

import pytest
from support.pipeline_ends import FileSource, KafkaSource, OutboxSource, PostgresSource, collect, own_database, readers

from harvest_lib.pipeline.extended_json import dumps, loads
from harvest_lib.pipeline.message import Op

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def dsn(stack):
    with own_database(stack) as made:
        yield made


@pytest.fixture(params=["postgres", "outbox", "kafka", "json_lines", "parquet"])
def source(request, tmp_path):
    fixture = request.getfixturevalue
    match request.param:
        case "postgres":
            made = PostgresSource(fixture("dsn"), fixture("unique"))
        case "outbox":
            made = OutboxSource(fixture("dsn"))
        case "kafka":
            made = KafkaSource(fixture("bootstrap_servers"), fixture("make_topic")())
        case kind:
            made = FileSource(tmp_path / "source", kind)
    yield made
    made.close()


@pytest.fixture
def reader(source):
    with readers(source) as make:
        yield make


def ids(messages):
    return [int(each.data["value"] if "value" in each.data else each.data["id"]) for each in messages]


def has_position(last):
    return any(each.op is Op.NOOP for each in last.values())


def test_what_is_there_and_what_follows_comes_once_and_in_order(source, reader):
    source.put(*range(1, 21))
    batches = reader(batch_rows=7).read({})
    found = []
    while len(found) < 20:
        found += [each for each in next(batches) if each.op is not Op.NOOP]
    assert next(batch for batch in batches if not any(each.op is not Op.NOOP for each in batch)) is not None
    source.put(*range(21, 31))
    while len(found) < 30:
        found += [each for each in next(batches) if each.op is not Op.NOOP]
    assert ids(found) == list(range(1, 31))
    assert {each.namespace for each in found} == {source.namespace}
    assert {each.op for each in found} == {Op.INSERT}


def test_data_goes_through_the_log_unharmed(source, reader):
    source.put(1)
    batch = next(batch for batch in reader().read({}) if batch)
    assert all(loads(dumps(each.data)) == each.data for each in batch)


def test_it_goes_on_after_what_the_log_has(source, reader):
    source.put(*range(1, 11))
    first = reader()
    _, last = collect(first, until=lambda found, last: len(found) == 10 and has_position(last))
    first.kept(last)
    first.kept(last)
    first.close()
    source.put(11, 12)
    found, _ = collect(reader(), last, until=lambda found, _: 12 in ids(found))
    assert ids(found)[-2:] == [11, 12]
    assert ids(found).count(12) == 1


@pytest.mark.gate(cases=2)
def test_stopped_anywhere_nothing_is_missed(source, reader):
    source.put(*range(1, 21))
    for stop in range(1, 8):
        seen, last, stopped = set(), {}, reader(batch_rows=4)
        for _, batch in zip(range(stop), stopped.read({}), strict=False):
            seen.update(ids(each for each in batch if each.op is not Op.NOOP))
            last.update((each.namespace, each) for each in batch)
        stopped.close()
        seen_before = seen
        collect(reader(), last, until=lambda found, _: seen_before | set(ids(found)) >= set(range(1, 21)))  # noqa: B023 - at once


def test_one_that_never_read_is_closed(reader):
    reader().kept({})
