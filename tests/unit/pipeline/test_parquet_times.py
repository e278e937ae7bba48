"""Points in time of Parquet files are carried as they are, in lists and structs too, or refused."""

from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.pipeline_ends import collect, opened

from harvest_lib.errors import AdaptorError
from harvest_lib.pipeline.adaptors import reading
from harvest_lib.pipeline.extended_json import dumps, loads

pytestmark = pytest.mark.quick

TEXT = ["9999-12-31 23:59:59.999999", "0001-01-01 00:00:00", "1969-07-20 00:00:00", "2262-04-12 00:00:00", None]
FAR = [each and datetime.fromisoformat(each) for each in TEXT]


@pytest.fixture
def read(tmp_path):
    def read(table, **how):
        pq.write_table(table, tmp_path / "t.parquet", **how)
        reader = opened(reading("file"), path=str(tmp_path), format="parquet")
        found, _ = collect(reader, until=lambda _found, _last: False)
        assert all(loads(dumps(each.data)) == each.data for each in found), "a message can hold them"
        return [each.data["t"] for each in found]

    return read


def table(values, of_type):
    return pa.table({"t": pa.array(values, of_type)})


@pytest.mark.parametrize("int96", [True, False])
def test_the_first_and_the_last_year_are_themselves(read, int96):
    assert read(table(FAR, pa.timestamp("us")), use_deprecated_int96_timestamps=int96) == TEXT


@pytest.mark.parametrize("int96", [True, False])
def test_in_lists_structs_and_maps_as_in_columns(read, int96):
    stamp = pa.timestamp("us")
    kinds = [
        (pa.list_(stamp), [[each] for each in FAR], [[each] for each in TEXT]),
        (pa.struct([("a", stamp)]), [{"a": each} for each in FAR], [{"a": each} for each in TEXT]),
        (
            pa.list_(pa.struct([("a", pa.list_(stamp))])),
            [[{"a": [each, None]}, None] for each in FAR],
            [[{"a": [each, None]}, None] for each in TEXT],
        ),
        (pa.map_(pa.string(), stamp), [[("k", each)] for each in FAR], [[["k", each]] for each in TEXT]),
    ]
    for of_type, given, wanted in kinds:
        assert read(table(given, of_type), use_deprecated_int96_timestamps=int96) == wanted, of_type


def test_each_kind_of_time_in_a_list_is_what_it_is_in_a_column(read):
    at = datetime(2020, 2, 1, 3, 4, 5, 6, UTC)
    for of_type, given, wanted in [
        (pa.timestamp("us", tz="Asia/Kolkata"), at, at),
        (pa.timestamp("ns", tz="UTC"), at, at),
        (pa.timestamp("ms"), datetime.fromisoformat("2020-02-01"), "2020-02-01 00:00:00"),
        (pa.date32(), date(1, 1, 1), "0001-01-01"),
        (pa.time64("us"), time(3, 4, 5, 6), "03:04:05.000006"),
        (pa.duration("us"), timedelta(days=1, microseconds=1), "1 day, 0:00:00.000001"),
    ]:
        assert read(table([given], of_type)) == [wanted]
        assert read(table([[given]], pa.list_(of_type))) == [[wanted]]
        assert read(table([{"a": given}], pa.struct([("a", of_type)]))) == [{"a": wanted}]


@pytest.mark.parametrize("wrap", [lambda kind: (kind, 1), lambda kind: (pa.list_(kind), [1])])
def test_nanoseconds_are_refused_and_not_cut(read, wrap):
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", tz="UTC"), pa.time64("ns"), pa.duration("ns")):
        of_type, value = wrap(kind)
        with pytest.raises(AdaptorError, match="time that a message cannot hold"):
            read(table([value], of_type))


@pytest.mark.parametrize("wrap", [lambda kind: (kind, 1), lambda kind: (pa.list_(kind), [1])])
def test_nanoseconds_of_int96_are_refused_and_not_cut(read, wrap):
    of_type, value = wrap(pa.timestamp("ns"))
    with pytest.raises(AdaptorError, match="nanoseconds"):
        read(table([value], of_type), use_deprecated_int96_timestamps=True)


def test_what_is_beyond_all_years_is_refused(read):
    for values, of_type in (
        ([1 << 60], pa.timestamp("us")),
        ([1 << 60], pa.timestamp("us", tz="UTC")),
        ([[1 << 60]], pa.list_(pa.timestamp("us"))),
        ([1 << 30], pa.date32()),
        ([-(1 << 30)], pa.date32()),
    ):
        with pytest.raises(AdaptorError):
            read(table(values, of_type))


def test_an_ancient_time_in_the_calendar_of_an_old_spark_is_refused(read):
    old = {"org.apache.spark.legacyDateTime": "", "org.apache.spark.version": "2.4.0"}
    assert read(table([date(2000, 1, 1)], pa.date32()).replace_schema_metadata(old)) == ["2000-01-01"]
    with pytest.raises(AdaptorError, match="calendar"):
        read(table([date(1, 1, 1)], pa.date32()).replace_schema_metadata(old))
