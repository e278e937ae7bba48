"""`option("archive", …)`: archive and outbox as one frame, no gap, nothing twice, or a clear failure."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from harvest_lib.archive import ArchiveFiles, archive_segments
from harvest_lib.errors import ArchiveError
from harvest_lib.outbox import append
from harvest_lib.outbox.segments import drop_passed
from harvest_lib.record import OutboxRecord
from harvest_lib.spark.data_source import outbox_rows
from harvest_lib.spark.data_source.read_options import ReadOptions
from harvest_lib.spark.data_source.windows import OutboxPartition

pytestmark = [pytest.mark.full, pytest.mark.spark]

SEGMENT = 10


@pytest.fixture
def native(make_outbox):
    return make_outbox(size=SEGMENT, ahead=5)


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "archive")


def read(spark, native, **options):
    rows = spark.read.format("outbox").options(dsn=native.dsn, **options).load().orderBy("id").collect()
    return [row.asDict() for row in rows]


def archive(native, url):
    return list(archive_segments(native.connection, native.table, url))


def drop(native):
    native.subscribe(native.snapshot())
    return drop_passed(native.connection, native.table, keep_seconds=0).dropped


def test_archive_and_outbox_are_one_frame(spark, native, url):
    """The same before any is dropped, once some are, and while writers go on."""
    records = [
        OutboxRecord(topic=f"t{n % 2}", key=f"k {n}", value=None if n % 7 == 0 else f"v{n}", headers=[("h", str(n))])
        for n in range(35)
    ]
    append(native.connection, records)
    native.connection.execute("UPDATE outbox SET create_time = 'infinity' WHERE id = 3")
    expected = read(spark, native)
    assert len(expected) == 35
    assert len(archive(native, url)) == 3
    assert read(spark, native, archive=url) == expected
    assert drop(native) == ["outbox_from_0", "outbox_from_10", "outbox_from_20"]
    assert [row["id"] for row in read(spark, native)] == [30, 31, 32, 33, 34, 35]
    assert read(spark, native, archive=url) == expected
    append(native.connection, records[:3])
    assert read(spark, native, archive=url)[:35] == expected


def test_what_is_in_both_comes_from_the_outbox(native, url):
    native.write(3 * SEGMENT)
    archive(native, url)
    parts = outbox_rows.plan_batch(ReadOptions(dsn=native.dsn, archive=url))
    assert {type(each) for each in parts} == {OutboxPartition}


@pytest.mark.parametrize("damage", ["first manifest", "last manifest", "file", "altered"])
def test_what_is_gone_from_both_is_a_failure(spark, native, url, damage):
    native.write(3 * SEGMENT)
    archive(native, url)
    assert len(drop(native)) == 3
    file = Path(url) / ArchiveFiles(url).manifest("outbox_from_0").files[0].path
    if damage == "file":
        file.unlink()
    elif damage == "altered":
        content = file.read_bytes()
        file.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    else:
        name = "outbox_from_0" if damage == "first manifest" else "outbox_from_20"
        (Path(url) / "segments" / f"{name}.json").unlink()
    with pytest.raises((ArchiveError, PySparkException), match="archive"):
        read(spark, native, archive=url)


def test_a_gap_in_the_archive_is_a_failure_also_where_the_outbox_notes_nothing(spark, native, url):
    native.write(3 * SEGMENT)
    archive(native, url)
    assert len(drop(native)) == 3
    native.connection.execute("DELETE FROM outbox_archived")
    (Path(url) / "segments" / "outbox_from_10.json").unlink()
    with pytest.raises((ArchiveError, PySparkException), match="lacks segments"):
        read(spark, native, archive=url)


def test_the_archive_of_another_outbox_is_refused(spark, native, url, tmp_path):
    native.write(SEGMENT)
    archive(native, url)
    about = Path(url) / "outbox.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "identity": "1/2/3"}))
    with pytest.raises((ArchiveError, PySparkException), match="another outbox"):
        read(spark, native, archive=url)
    with pytest.raises((ArchiveError, PySparkException), match="there is no archive"):
        read(spark, native, archive=str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
