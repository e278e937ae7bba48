"""Filters that Postgres evaluates for Spark: the same rows as without, of which no others are fetched."""

import pytest
from pyspark.sql import datasource

from harvest_lib.archive import archive_segments
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.outbox.segments import drop_passed
from harvest_lib.record import OutboxRecord
from harvest_lib.spark.data_source import outbox_rows
from harvest_lib.spark.data_source.read_options import read_schema
from harvest_lib.spark.data_source.reader import FilteringReader

pytestmark = [pytest.mark.full, pytest.mark.spark]

if not hasattr(datasource, "EqualTo"):
    pytest.skip("Spark 4.0 shows no filters to a source in Python", allow_module_level=True)

ENABLED = "spark.sql.python.filterPushdown.enabled"
KEYS = ("a", "A", "a b", "100%", "1_0", "it's", 'say "x"', "back\\slash", "straße", "日本", "é", "e\u0301", "")
PUSHED = (
    "id = 7",
    "id in (3, 12, 25, 900)",
    "id < 10",
    "id <= 10 and id > 4",
    "id >= 20",
    "id > 20 and id < 5",
    "id < -5",
    "kafka_topic = 'rare'",
    "kafka_topic in ('rare', 'none')",
    "kafka_topic = 'RARE'",
    *("kafka_key = '" + key.replace("\\", "\\\\").replace("'", "\\'") + "'" for key in KEYS),
    "kafka_key like 'a%'",
    "startswith(kafka_key, '1')",
    "startswith(kafka_key, '')",
    "create_time >= timestamp '2026-01-02 00:00:00' and create_time < timestamp '2026-01-04 12:00:00.000001'",
    "create_time = timestamp '2026-01-03 00:00:00'",
    "create_time > timestamp '1970-01-01 00:00:00'",
    "create_time is not null",
    "kafka_topic = 'rare' and id > 9 and startswith(kafka_key, 'a')",
)
LEFT = (
    "create_time is null",
    "kafka_value = 'v3'",
    "kafka_key > 'a'",
    "kafka_key like '%a'",
    "kafka_key like '1\\_%'",
    "not (id = 7)",
    "id = 7 or kafka_topic = 'rare'",
    "kafka_key = 'nul\\0'",
    "transaction_id > 0",
    "length(kafka_key) = 1",
)


@pytest.fixture
def pushing(spark):
    """Turn the setting of Spark on or off."""

    def turn(*, on):
        spark.conf.set(ENABLED, str(on).lower())

    yield turn
    spark.conf.unset(ENABLED)


def fill(connection):
    """Write 39 records of two topics, a day apart; one has no finite time."""
    append(
        connection,
        [
            OutboxRecord(topic="rare" if n % 6 == 0 else "often", key=KEYS[n % len(KEYS)], value=f"v{n}")
            for n in range(39)
        ],
    )
    connection.execute("UPDATE outbox SET create_time = timestamptz '2026-01-01 00:00:00+00' + id * interval '1 day'")
    connection.execute("UPDATE outbox SET create_time = 'infinity' WHERE id = 5")
    connection.execute("UPDATE outbox SET create_time = '-infinity' WHERE id = 6")


@pytest.fixture
def native(make_outbox):
    made = make_outbox(size=10, ahead=5)
    fill(made.connection)
    return made


def frame_of(spark, dsn, **options):
    return spark.read.format("outbox").options(dsn=dsn, **options).load()


def require_same(pushing, frame, wheres):
    """Each filter chooses the rows that Spark chooses by it."""
    pushing(on=False)
    chosen = frame.selectExpr("id", *(f"coalesce({where}, false) AS w{n}" for n, where in enumerate(wheres))).collect()
    pushing(on=True)
    for n, where in enumerate(wheres):
        found = [row.id for row in frame.where(where).select("id").collect()]
        assert sorted(found) == sorted(row.id for row in chosen if row[f"w{n}"]), where


def plan(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


def test_rows_are_those_that_spark_would_choose(spark, native, pushing):
    require_same(pushing, frame_of(spark, native.dsn), (*PUSHED, *LEFT))


def test_the_plan_shows_which_filters_are_left_to_spark(spark, native, pushing):
    pushing(on=True)
    frame = frame_of(spark, native.dsn)
    for where in PUSHED:
        assert "Filter " not in plan(frame.where(where)), where
    for where in LEFT:
        assert "Filter " in plan(frame.where(where)), where


@pytest.mark.parametrize("part", range(4))  # each filter plans a read of the archive, in a process of its own
def test_rows_of_the_archive_are_chosen_likewise(spark, native, pushing, tmp_path, part):
    url = str(tmp_path / "archive")
    list(archive_segments(native.connection, native.table, url))
    native.subscribe(native.snapshot())
    assert drop_passed(native.connection, native.table, keep_seconds=0).dropped
    require_same(pushing, frame_of(spark, native.dsn, archive=url), PUSHED[part::4])


def test_rows_of_an_outbox_that_is_purged_are_chosen_likewise(spark, make_outbox, pushing):
    native = make_outbox()
    native.connection.execute("DROP TABLE outbox CASCADE")
    OutboxTable.parse("outbox").create(native.connection)
    fill(native.connection)
    require_same(pushing, frame_of(spark, native.dsn), PUSHED)


@pytest.mark.parametrize(
    ("filters", "segments", "found"),
    [
        ([datasource.EqualTo(("id",), 7)], 1, 1),
        ([datasource.In(("id",), (9, 10)), datasource.IsNotNull(("id",))], 2, 2),
        ([datasource.GreaterThanOrEqual(("id",), 30)], 3, 10),
        ([datasource.LessThan(("id",), 1)], 1, 0),
        ([datasource.EqualTo(("kafka_topic",), "rare")], 5, 7),
        ([datasource.StringStartsWith(("kafka_key",), "a")], 5, 6),
    ],
)
def test_other_rows_are_not_fetched_and_other_segments_not_read(native, filters, segments, found):
    options = {"dsn": native.dsn}
    schema = read_schema(options)
    reader = FilteringReader(options, schema)
    assert list(reader.pushFilters(filters)) == []
    parts = reader.partitions()
    assert len([part for part in parts if part.floor <= 39]) <= segments
    batches = [batch for part in parts for batch in outbox_rows.read(reader.options, part, schema)]
    assert sum(batch.num_rows for batch in batches) == found


def test_where_the_setting_is_off_a_read_is_as_before(spark, native, pushing):
    pushing(on=False)
    frame = frame_of(spark, native.dsn).where("id = 7")
    assert frame.count() == 1
    assert "Filter " in plan(frame)
