"""The memory of a harvester is bounded by bytes: 150 MB and three times the largest record, however many there are."""

import logging
import time

import psycopg
import pytest
from support.native import Native
from support.outbox import Outbox, read_topic
from support.peak import MEGABYTE, peak_of_drain
from support.row_shapes import ends

from harvest_lib.native import implementation

pytestmark = pytest.mark.full

ALLOWED_BYTES = 150 * MEGABYTE
ALLOWED_GROWTH_BYTES = 20 * MEGABYTE
"""Between the first million of records and the tenth, without which there is no telling a leak of two bytes a record
from what malloc has not given back."""

_NOT_COMPRESSED = "ALTER TABLE outbox ALTER kafka_value SET STORAGE EXTERNAL"

_FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %(topic)s, 'key-' || (g %% %(keys)s),
       repeat('x', %(value_bytes)s),
       %(names)s::text[],
       ARRAY(SELECT repeat('h', %(header_bytes)s) FROM unnest(%(names)s::text[]))
FROM generate_series(1, %(records)s) g
"""


def fill(connection, topic, records, value_bytes, *, keys=50, header_bytes=0):
    names = ["header"] if header_bytes else []
    values = {"topic": topic, "records": records, "value_bytes": value_bytes, "keys": keys, "names": names}
    connection.execute(_FILL, {**values, "header_bytes": header_bytes})


def configured(dsn, bootstrap_servers, group, **settings):
    largest = 4 * MEGABYTE
    return {
        "baseKafkaConfig": {"bootstrap.servers": bootstrap_servers},
        "producerKafkaConfig": {"message.max.bytes": largest},
        "leaderGroupID": group,
        "dataSource": dsn,
        **settings,
    }


@pytest.fixture
def topic(make_topic):
    return make_topic(partitions=4, **{"max.message.bytes": 4 * MEGABYTE})


@pytest.fixture
def native(dsn):
    made = Native(dsn, size=1_000_000, value_type="text")
    made.connection.execute(_NOT_COMPRESSED)
    for name in made.names():
        made.connection.execute(_NOT_COMPRESSED.replace("outbox", name))
    yield made.connection
    made.connection.close()


@pytest.fixture
def marked(dsn, topic):
    made = Outbox(dsn, topic)
    made.connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE text")
    made.connection.execute(_NOT_COMPRESSED)
    yield made.connection
    made.close()


def drained(tmp_path, bootstrap_servers, topic, records, settings):
    peak = peak_of_drain(tmp_path, settings)
    came = len({record.outbox_id for record in read_topic(bootstrap_servers, topic, isolation="read_committed")})
    assert came == records
    return peak


@pytest.mark.parametrize("source", ["snapshot", "transaction_id"])
@pytest.mark.parametrize("delivery", ["barrier", "transactional"])
def test_many_large_values_of_one_transaction(
    tmp_path, native, dsn, bootstrap_servers, group_id, topic, source, delivery
):
    """One transaction of 360 MB: by its number of rows it is less than one page."""
    fill(native, topic, 400, 900_000)
    settings = configured(dsn, bootstrap_servers, group_id, source=source, delivery=delivery)
    peak = drained(tmp_path, bootstrap_servers, topic, 400, settings)
    assert peak <= ALLOWED_BYTES + 3 * 900_000


@pytest.mark.parametrize("delivery", ["pipelined", "sequenced"])
def test_larger_values_by_the_other_deliveries(tmp_path, native, dsn, bootstrap_servers, group_id, topic, delivery):
    fill(native, topic, 150, 3_000_000)
    settings = configured(dsn, bootstrap_servers, group_id, source="snapshot", delivery=delivery)
    peak = drained(tmp_path, bootstrap_servers, topic, 150, settings)
    assert peak <= ALLOWED_BYTES + 3 * 3_000_000


@pytest.mark.parametrize("delivery", ["barrier", "pipelined", "transactional"])
def test_large_values_of_a_table_that_is_marked(tmp_path, marked, dsn, bootstrap_servers, group_id, topic, delivery):
    fill(marked, topic, 150, 3_000_000)
    settings = configured(dsn, bootstrap_servers, group_id, source="mark", delivery=delivery)
    peak = drained(tmp_path, bootstrap_servers, topic, 150, settings)
    assert peak <= ALLOWED_BYTES + 3 * 3_000_000
    assert not marked.execute("SELECT count(*) FROM outbox").fetchone()[0]


@pytest.mark.parametrize("source", ["snapshot", "mark"])
def test_large_headers(request, tmp_path, dsn, bootstrap_servers, group_id, topic, source):
    """They are compressed in the table, so that they look small there."""
    connection = request.getfixturevalue("marked" if source == "mark" else "native")
    fill(connection, topic, 400, 32, header_bytes=900_000)
    settings = configured(dsn, bootstrap_servers, group_id, source=source)
    peak = drained(tmp_path, bootstrap_servers, topic, 400, settings)
    assert peak <= ALLOWED_BYTES + 3 * 900_000


def test_large_values_that_commit_late(tmp_path, native, dsn, bootstrap_servers, group_id, topic):
    """The transaction was open when the last snapshot was taken, and others have written since."""
    settings = configured(dsn, bootstrap_servers, group_id, source="snapshot")
    with psycopg.connect(dsn) as late:
        fill(late, topic, 400, 900_000)
        fill(native, topic, 3, 100)
        peak_of_drain(tmp_path, settings)
    fill(native, topic, 3_000, 100)
    peak = drained(tmp_path, bootstrap_servers, topic, 3_403, settings)
    assert peak <= ALLOWED_BYTES + 3 * 900_000


def test_large_values_behind_many_small_ones(tmp_path, native, dsn, bootstrap_servers, group_id, topic):
    """Pages have grown by then, so that one of as many large values would be all of them."""
    for records, value_bytes in ((20_000, 100), (300, 900_000), (5_000, 100)):
        fill(native, topic, records, value_bytes)
    settings = configured(dsn, bootstrap_servers, group_id, source="snapshot", delivery="pipelined")
    peak = drained(tmp_path, bootstrap_servers, topic, 25_300, settings)
    assert peak <= ALLOWED_BYTES + 3 * 900_000


def test_one_hot_key_of_large_values(tmp_path, native, dsn, bootstrap_servers, group_id, topic):
    """Under the barrier all of them but one are deferred in each batch."""
    fill(native, topic, 200, 900_000, keys=1)
    settings = configured(dsn, bootstrap_servers, group_id, source="snapshot")
    peak = drained(tmp_path, bootstrap_servers, topic, 200, settings)
    assert peak <= ALLOWED_BYTES + 3 * 900_000


@pytest.mark.long
@pytest.mark.parametrize(("source", "delivery"), [("snapshot", "barrier"), ("transaction_id", "transactional")])
def test_two_million_records_of_one_transaction(
    tmp_path, native, dsn, bootstrap_servers, group_id, topic, source, delivery
):
    """The memory for each record's key or id is bounded as well."""
    fill(native, topic, 2_000_000, 10, keys=500_000)
    settings = configured(dsn, bootstrap_servers, group_id, source=source, delivery=delivery)
    assert peak_of_drain(tmp_path, settings, seconds=300) <= ALLOWED_BYTES


@pytest.mark.long
def test_two_million_marked_records(tmp_path, marked, dsn, bootstrap_servers, group_id, topic):
    fill(marked, topic, 2_000_000, 10, keys=500_000)
    settings = configured(dsn, bootstrap_servers, group_id, source="mark", delivery="pipelined")
    assert peak_of_drain(tmp_path, settings, seconds=300) <= ALLOWED_BYTES


@pytest.mark.long
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("impl", ["native", "python"])
@pytest.mark.parametrize("delivery", ["transactional", "sequenced"])
def test_ten_million_records_take_no_more_than_one(
    tmp_path, native, dsn, bootstrap_servers, group_id, topic, delivery, impl
):
    """Once they have been read for a while, memory does not grow any more."""
    if impl == "native" and implementation().library is None:
        pytest.skip(f"there is no native library here: {implementation().reason}")
    for _ in range(10):
        fill(native, topic, 1_000_000, 60, keys=500_000, header_bytes=4)
    looks = []

    def look(resident):
        if not looks or time.monotonic() - looks[-1][0] > 0.5:
            looks.append((time.monotonic(), sum(ends(bootstrap_servers, topic).values()), resident))

    settings = configured(dsn, bootstrap_servers, group_id, source="snapshot", delivery=delivery)
    peak = peak_of_drain(tmp_path, settings, seconds=900, impl=impl, look=look)
    early = next(resident for _, arrived, resident in looks if arrived >= 1_000_000)
    late = max(resident for _, arrived, resident in looks if arrived >= 9_000_000)
    megabytes = [round(each / MEGABYTE) for each in (early, late, peak)]
    logging.getLogger(__name__).info("%s, %s: %s MB after 10^6, after 9 * 10^6, at most", impl, delivery, megabytes)
    assert sum(ends(bootstrap_servers, topic).values()) >= 10_000_000
    assert late - early <= ALLOWED_GROWTH_BYTES, megabytes
    assert peak <= ALLOWED_BYTES, megabytes


def test_two_hundred_thousand_records_that_are_held(tmp_path, native, dsn, bootstrap_servers, group_id, topic):
    """All of a batch is written down, and nothing of it is sent: the list of it is bounded too."""
    fill(native, topic, 200_000, 10, keys=1)
    native.execute("UPDATE outbox SET kafka_header_keys = '{a}' WHERE id = 1")
    settings = configured(dsn, bootstrap_servers, group_id, source="snapshot", delivery="pipelined")
    assert peak_of_drain(tmp_path, settings) <= ALLOWED_BYTES
    held, parked = native.execute("SELECT count(*) FILTER (WHERE held), count(*) FROM outbox_parked_ids").fetchone()
    assert (held, parked) == (199_999, 200_000)
