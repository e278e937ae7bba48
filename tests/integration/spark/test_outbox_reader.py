"""`spark.read.format("outbox")`: one snapshot in all partitions, or a clear failure."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.encoded import prepared, write
from support.outbox_source import without_password

from harvest_lib.errors import DatabaseAccessDenied, PositionLost, RecordError
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.record import PAGE_BYTES, OutboxRecord
from harvest_lib.spark.data_source import outbox_rows, register
from harvest_lib.spark.data_source.read_options import ReadOptions, read_schema

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.fixture
def native(make_outbox):
    return make_outbox(size=10, ahead=3)


def read(spark, dsn, **options):
    return spark.read.format("outbox").options(dsn=dsn, **options).load()


def ids(options, parts):
    """Return the ids of what tasks read."""
    schema = read_schema({"dsn": options.dsn})
    return [i for part in parts for batch in outbox_rows.read(options, part, schema) for i in batch["id"].to_pylist()]


@pytest.mark.full
def test_every_column_comes_as_it_was_written(spark, native):
    record = OutboxRecord(topic="orders", key="a b", value='{"n": 1}', headers={"event": "placed", "none": None})
    append(native.connection, [record, OutboxRecord(topic="orders", key="c", value=None)])
    rows = read(spark, native.dsn).orderBy("id").collect()
    at, xid = native.connection.execute(
        "SELECT create_time, transaction_id::text::bigint FROM outbox ORDER BY id LIMIT 1"
    ).fetchone()
    assert [row.asDict() for row in rows] == [
        {
            "id": 1,
            "transaction_id": xid,
            "create_time": at.replace(tzinfo=None),
            "kafka_topic": "orders",
            "kafka_key": "a b",
            "kafka_value": '{"n": 1}',
            "kafka_header_keys": ["event", "none"],
            "kafka_header_values": ["placed", None],
        },
        {**rows[1].asDict(), "kafka_key": "c", "kafka_value": None, "kafka_header_keys": []},
    ]


def test_bytes_stay_bytes_and_an_outbox_may_be_empty(spark, make_outbox):
    native = make_outbox(value_type="bytea")
    assert read(spark, native.dsn).count() == 0
    append(native.connection, [OutboxRecord(topic="t", key="k", value=b"v")] * 3)
    assert [bytes(row.kafka_value) for row in read(spark, native.dsn).collect()] == [b"v"] * 3


def test_a_partition_for_each_segment_and_shard_and_each_record_in_one(spark, native):
    append(native.connection, [OutboxRecord(topic="t", key=f"k{i}", value=str(i)) for i in range(25)])
    frame = read(spark, native.dsn, shards="3")
    assert frame.rdd.getNumPartitions() == 3 * 3 < 3 * len(native.names()), "25 rows are in three segments"
    parts = [part for part in frame.select("id", "kafka_key").rdd.glom().collect() if part]
    assert sorted(row.id for part in parts for row in part) == list(range(1, 26))
    assert all([row.id for row in part] == sorted(row.id for row in part) for part in parts)
    assert all(len({row.id // 10 for row in part}) == 1 for part in parts), "a segment each"


def test_all_partitions_see_what_one_snapshot_saw(native):
    """Rows committed after the plan, in transactions that began before or after, are in no partition."""
    native.write(15)
    with psycopg.connect(native.dsn) as open_since:
        native.write(2, open_since)
        native.write(3)
        options = ReadOptions.parse({"dsn": native.dsn}, streaming=False)
        parts = outbox_rows.plan_batch(options)
        open_since.commit()
    native.write(5)
    assert ids(options, parts) == [*range(1, 16), 18, 19, 20]


def test_pairs_written_together_are_read_together_while_writers_go_on(spark, make_outbox):
    """Each transaction writes two records, far apart by key: half a transaction would be an odd count."""
    native, stopped = make_outbox(size=1_000, ahead=20), []

    def write():
        with psycopg.connect(native.dsn) as connection:
            while not stopped:
                for key in ("a", "b"):
                    append(connection, [OutboxRecord(topic="t", key=key, value=None)])
                connection.commit()

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write) for _ in range(2)]
        try:
            for _ in range(3):
                counts = {
                    row.kafka_key: row["count"]
                    for row in read(spark, native.dsn).groupBy("kafka_key").count().collect()
                }
                assert counts.get("a", 0) == counts.get("b", 0)
        finally:
            stopped.append(True)
        for each in writers:
            each.result(60)


def test_a_segment_dropped_between_plan_and_read_is_a_failure(spark, native):
    native.write(25)
    options = ReadOptions.parse({"dsn": native.dsn}, streaming=False)
    parts = outbox_rows.plan_batch(options)
    name = native.names()[0]
    native.connection.execute(f"ALTER TABLE outbox DETACH PARTITION {name}")
    with pytest.raises(PositionLost, match="dropped before all of it was read"):
        ids(options, parts[:1])
    assert ids(options, parts[1:]) == list(range(10, 26)), "which is still there"


def test_text_that_is_not_utf8_is_a_failure_that_names_the_record(encoded, tmp_path):
    dsn = without_password(encoded("SQL_ASCII"), tmp_path)
    prepared(dsn, "t", "snapshot")
    write(dsn, "SQL_ASCII", (b"t", "\u00e9".encode(), b"v", [], []), (b"t", b"\xe9", b"v", [], []))
    options = ReadOptions.parse({"dsn": dsn}, streaming=False)
    with pytest.raises(RecordError, match="the record 2 cannot be read"):
        ids(options, outbox_rows.plan_batch(options))


def test_an_infinite_time_is_null(spark, native):
    native.write(1)
    native.connection.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
        " VALUES ('infinity', 't', 'k', '{}', '{}')"
    )
    assert [row.create_time is None for row in read(spark, native.dsn).orderBy("id").collect()] == [False, True]


def test_who_cannot_see_all_rows_is_refused(native, unique):
    native.write(2)
    role = unique("reads")[:63]
    native.connection.execute(
        f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};"
        f" ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; ALTER TABLE outbox OWNER TO {role};"
        " ALTER TABLE outbox FORCE ROW LEVEL SECURITY"
    )
    options = ReadOptions.parse({"dsn": make_conninfo(native.dsn, options=f"-c role={role}")}, streaming=False)
    try:
        with pytest.raises(DatabaseAccessDenied, match="row-level security hides rows"):
            ids(options, outbox_rows.plan_batch(options))
    finally:
        native.connection.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")


def test_goharvests_layout_is_read_in_one_piece(spark, dsn):
    register(spark)
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password")
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
        append(connection, [OutboxRecord(topic="t", key=f"k{i}", value=str(i)) for i in range(12_000)])
    frame = read(spark, make_conninfo(**parts), password=password, shards="2")
    assert frame.rdd.getNumPartitions() == 1
    rows = frame.collect()
    assert [row.id for row in rows] == list(range(1, 12_001))
    assert {row.transaction_id for row in rows} == {None}
    assert rows[-1].kafka_key == "k11999"


@pytest.mark.gate
def test_what_is_read_in_one_piece_is_read_by_bytes(dsn):
    count, size = 600, 9_999  # the largest that the layout of goharvest takes
    with psycopg.connect(dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
        append(connection, [OutboxRecord(topic="t", key="k", value=str(n)) for n in range(600)])
        append(connection, [OutboxRecord(topic="t", key="k", value="x" * size) for _ in range(count)])
    parts = conninfo_to_dict(dsn)
    given = {"password": parts.pop("password"), "dsn": make_conninfo(**parts)}
    options, schema = ReadOptions.parse(given, streaming=False), read_schema(given)
    (part,) = outbox_rows.plan_batch(options)
    batches = list(outbox_rows.read(options, part, schema))
    assert [i for batch in batches for i in batch["id"].to_pylist()] == list(range(1, 601 + count))
    assert max(batch.nbytes for batch in batches) < 2 * PAGE_BYTES < count * size


def test_a_native_outbox_that_is_marked_is_read_in_one_piece(spark, native):
    native.write(25)
    native.subscribe("1:1:")
    native.connection.execute("UPDATE outbox_subscriptions SET source = 'mark'")
    frame = read(spark, native.dsn)
    assert (frame.rdd.getNumPartitions(), frame.count()) == (1, 25)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"shard": "2"}, "no option 'shard'"),
        ({"shards": "0"}, "'0' is no number"),
        ({"shards": "two"}, "'two' is no number"),
        ({"maxRecordsPerBatch": "5"}, "for spark.readStream alone"),
        ({"outbox": "a.b.c"}, "cannot name a table"),
        ({"outbox": "nowhere"}, "there is no table"),
    ],
)
def test_options_are_refused_before_anything_is_read(spark, native, options, match):
    with pytest.raises(Exception, match=match) as caught:
        read(spark, native.dsn, **options).count()
    assert "next step:" in str(caught.value)


def test_a_password_in_the_dsn_is_refused_and_not_shown(spark, native):
    for dsn in (
        "host=127.0.0.1 user=u password=hush-hush",
        "postgresql://u:hush-hush@h/d",
        "postgresql://u:hush@hush@h",
    ):
        with pytest.raises(Exception, match=r"DSN holds a password|connection string of Postgres") as caught:
            read(spark, dsn).count()
        assert "hush" not in str(caught.value)


def test_another_schema_is_refused(spark, native):
    with pytest.raises(Exception, match="leave the schema out"):
        spark.read.format("outbox").option("dsn", native.dsn).schema("id int").load().count()
