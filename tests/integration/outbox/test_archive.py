"""The archive of closed segments: it has the rows that were in Postgres, and no others are dropped."""

import json
import os
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pyarrow.dataset
import pytest
from support.native import Native

from harvest_lib.archive import ArchiveFiles, archive_segments, closed_segments, verify_archive
from harvest_lib.archive.files import HashingFile
from harvest_lib.archive.records import SegmentRecords
from harvest_lib.errors import ArchiveError, DatabaseError
from harvest_lib.outbox import append
from harvest_lib.outbox.segments import Segments, drop_passed
from harvest_lib.outbox.segments.archived import ArchivedSegments
from harvest_lib.record import PAGE_BYTES, OutboxRecord

pytestmark = pytest.mark.gate

SEGMENT = 10


@pytest.fixture
def native(dsn):
    return Native(dsn, size=SEGMENT)


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "an archive")


def archive(native, url, segments=None):
    return list(archive_segments(native.connection, native.table, url, segments))


def dropped(native):
    return drop_passed(native.connection, native.table, keep_seconds=0)


def rows(native, last):
    """Return the rows of Postgres up to an id, as an archive has them."""
    statement = """
    SELECT id, transaction_id::text::bigint, create_time, kafka_topic, kafka_key, kafka_value,
           kafka_header_keys, kafka_header_values FROM {} WHERE id <= %s ORDER BY id
    """
    return native.connection.execute(statement.format(native.table), (last,)).fetchall()


def archived_rows(url):
    table = pyarrow.dataset.dataset(f"{url}/records", format="parquet").to_table().sort_by("id")
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.quick
def test_an_archive_has_what_postgres_had(native, url):
    """All that a column can hold, over two topics and days."""
    hostile = ["", "ü€\U0001f600", "a/b", "..", "line\nbreak", '"', "%", "x" * 9_999, None]
    records = [
        OutboxRecord(topic=f"t{n % 2}", key=f"k{n % 3}", value=value, headers=[("h", str(n)), ("h", "")])
        for n, value in enumerate(hostile)
    ]
    append(native.connection, [*records, *records, *records])
    native.connection.execute("UPDATE outbox SET create_time = '2026-01-02 03:04:05.678901+00' WHERE id % 4 = 0")
    expected = rows(native, 2 * SEGMENT - 1)
    done = archive(native, url)
    assert [each.records for each in done] == [SEGMENT - 1, SEGMENT]
    assert archived_rows(url) == expected
    assert [each.records for each in verify_archive(url)] == [SEGMENT - 1, SEGMENT]
    manifest = ArchiveFiles(url).manifest("outbox_from_0")
    assert {file.day for file in manifest.files} == {"2026-01-02", datetime.now(UTC).strftime("%Y-%m-%d")}
    assert {file.topic for file in manifest.files} == {"t0", "t1"}


def test_bytes_infinite_times_and_topics_that_kafka_has_not(dsn, url):
    native = Native(dsn, size=SEGMENT, value_type="bytea")
    for topic in ("../../etc", "ü ", "a=b", "", ".."):
        native.connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, create_time) "
            "VALUES (%s, 'k', '\\x00ff'::bytea, 'infinity'), (%s, 'k', NULL, '-infinity')",
            (topic, topic),
        )
    assert archive(native, url)[0].records == SEGMENT - 1
    files = ArchiveFiles(url).manifest("outbox_from_0").files
    assert {each.day for each in files} == {"infinity", "-infinity"}
    assert {each.topic for each in files} == {"../../etc", "ü ", "a=b", "", ".."}
    assert list(verify_archive(url))
    table = pyarrow.parquet.read_table(f"{url}/{files[0].path}")
    assert table["create_time"].cast("int64")[0].as_py() in {2**63 - 1, -(2**63)}


def test_records_are_read_by_bytes_also_where_small_records_come_first(dsn):
    """The last page before a topic of large records has 500 small ones."""
    count, size = 40, 1_000_000
    native = Native(dsn, size=10_000, value_type="bytea")
    small = [OutboxRecord(topic="a", key="k", value=b"x") for _ in range(2_000)]
    append(native.connection, [OutboxRecord(topic="b", key="k", value=b"x" * size) for _ in range(count)])
    append(native.connection, small)
    (segment, *_) = Segments(native.table.placed(native.connection)).read(native.connection)
    with native.connection.transaction():
        found = SegmentRecords(native.connection, segment)
        tracemalloc.start()
        try:
            lengths = [(topic, len(row[5])) for topic, _, rows in found.groups() for row in rows]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [length for topic, length in lengths if topic == "b"] == [size] * count
    assert [topic for topic, _ in lengths] == ["a"] * len(small) + ["b"] * count
    assert peak < 3 * PAGE_BYTES < count * size


def test_what_is_archived_is_not_archived_again_and_what_is_open_never(native, url):
    native.write(SEGMENT)
    assert [each.segment for each in archive(native, url)] == ["outbox_from_0"]
    assert archive(native, url) == []
    assert [each.segment for each in archive(native, url, closed_segments(native.connection, native.table))] == [
        "outbox_from_0"
    ]
    with psycopg.connect(native.dsn) as writer:
        native.write(SEGMENT, writer)
        assert archive(native, url) == [], "its writer has not ended"
    assert [each.segment for each in archive(native, url)] == ["outbox_from_10"]


def test_a_segment_is_dropped_only_once_it_is_archived(native, url):
    native.write(2 * SEGMENT)
    archive(native, url)
    native.write(SEGMENT)
    native.subscribe(native.snapshot())
    done = dropped(native)
    assert done.dropped == ["outbox_from_0", "outbox_from_10"]
    assert "not in the archive yet" in done.because
    assert [each.segment for each in archive(native, url)] == ["outbox_from_20"]
    assert dropped(native).dropped == ["outbox_from_20"]
    assert [each.records for each in verify_archive(url)] == [9, 10, 10]


def test_what_changed_since_is_archived_again_before_it_goes(native, url):
    """As a parked record that is put back does."""
    native.write(SEGMENT)
    archive(native, url)
    native.connection.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (0, 't', 'put back')")
    native.subscribe(native.snapshot())
    assert "changed since it was archived" in dropped(native).because
    assert archive(native, url)[0].records == SEGMENT
    assert dropped(native).dropped == ["outbox_from_0"]


def test_without_an_archive_segments_go_as_before(native):
    native.write(SEGMENT)
    native.subscribe(native.snapshot())
    assert dropped(native).dropped == ["outbox_from_0"]


@pytest.mark.parametrize("damage", ["altered", "cut", "gone", "manifest gone", "manifest altered"])
def test_damage_is_found(native, url, damage):
    native.write(3 * SEGMENT)
    archive(native, url)
    files = ArchiveFiles(url)
    path = Path(url) / files.manifest("outbox_from_10").files[0].path
    manifest = Path(url) / "segments" / "outbox_from_10.json"
    if damage == "altered":
        content = path.read_bytes()
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    elif damage == "cut":
        os.truncate(path, 100)
    elif damage == "gone":
        path.unlink()
    elif damage == "manifest gone":
        manifest.unlink()
    else:
        manifest.write_text('{"version": 1, "segment"')
    with pytest.raises(ArchiveError, match="outbox_from_10" if damage != "manifest gone" else "lacks ids") as refused:
        list(verify_archive(url))
    assert refused.value.evidence
    assert refused.value.next_step


@pytest.mark.parametrize("said", ["other bytes arrive than were sent", "other rows are sent than were read"])
def test_what_is_not_read_back_as_it_is_in_postgres_is_not_archived(native, url, monkeypatch, said):
    native.write(SEGMENT)
    native.subscribe(native.snapshot())
    if said == "other bytes arrive than were sent":
        monkeypatch.setattr(HashingFile, "sha256", "0" * 64)
    else:
        tables, first = SegmentRecords.tables, iter([True])

        def other(table):
            return table.set_column(4, table.schema.field(4), [["other"] * table.num_rows])

        def altered(records, rows):
            return (other(each) if next(first, False) else each for each in tables(records, rows))

        monkeypatch.setattr(SegmentRecords, "tables", altered)
    with pytest.raises(ArchiveError):
        archive(native, url)
    assert ArchiveFiles(url).manifests() == []
    assert "not in the archive yet" in dropped(native).because


def test_an_archive_of_a_newer_version_is_refused(native, url):
    native.write(SEGMENT)
    archive(native, url)
    path = Path(url) / "segments" / "outbox_from_0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2, "more": True}))
    with pytest.raises(ArchiveError, match="newer version"):
        list(verify_archive(url))


def test_two_outboxes_need_two_archives(native, url, dsn):
    native.write(SEGMENT)
    archive(native, url)
    other = Native(dsn, name="other", size=SEGMENT)
    append(other.connection, [OutboxRecord(topic="t", key="k", value="v")] * SEGMENT, table="other")
    with pytest.raises(ArchiveError, match="another outbox"):
        archive(other, url)


def test_no_room_costs_nothing(native, tmp_path):
    """Nothing is noted, and nothing is dropped, of a segment that could not be written."""
    native.write(SEGMENT)
    native.subscribe(native.snapshot())
    place = tmp_path / "archive"
    path = ArchiveFiles(str(place)).path("outbox_from_0", day=datetime.now(UTC).strftime("%Y-%m-%d"), topic="t")
    (place / path).parent.mkdir(parents=True)
    beside = (place / path).with_name(f".{Path(path).name}.new")
    beside.symlink_to("/dev/full")
    with pytest.raises(ArchiveError, match="could not be written") as refused:
        archive(native, str(place))
    assert "No space left" in refused.value.evidence
    assert "not in the archive yet" in dropped(native).because
    assert not beside.exists(), "it takes no room"
    assert archive(native, str(place))[0].records == SEGMENT - 1
    assert dropped(native).dropped == ["outbox_from_0"]


def test_all_is_on_the_disk_before_it_is_noted(native, tmp_path, monkeypatch):
    """Each file is synced, then named, then its folders are; the manifest likewise, and only then the note."""
    native.write(SEGMENT)
    done = []

    def watch(owner, name, say):
        true = getattr(owner, name)

        def call(*arguments, **options):
            what = say(*arguments)
            result = true(*arguments, **options)
            done.append((name, what))
            return result

        monkeypatch.setattr(owner, name, call)

    watch(os, "fsync", lambda handle: str(Path(f"/proc/self/fd/{handle}").readlink()))
    watch(os, "replace", lambda _, target: str(target))
    watch(Path, "replace", lambda _, target: str(target))
    watch(ArchivedSegments, "put", lambda *_: "noted")
    root = tmp_path / "made" / "archive"
    archive(native, str(root))
    (file,) = ArchiveFiles(str(root)).manifest("outbox_from_0").files
    places = {name: root / name for name in (file.path, "segments/outbox_from_0.json", "outbox.json")}
    for path in places.values():
        new = str(path.with_name(f".{path.name}.new"))
        assert done.index(("fsync", new)) < done.index(("replace", str(path)))
        assert ("fsync", str(path.parent)) in done[done.index(("replace", str(path))) :]
    records, manifest = (done.index(("replace", str(places[name]))) for name in list(places)[:2])
    folders = {str(each) for each in [*places[file.path].parents][:6]}
    assert folders >= {str(tmp_path), str(root), str(root / "records")}
    assert folders <= {what for name, what in done[:manifest] if name == "fsync"}
    assert records < manifest < done.index(("put", "noted"))
    assert ("fsync", str(root / "segments")) in done[manifest : done.index(("put", "noted"))]


LIMITED = """
import resource, signal, sys
from harvest_lib.archive import archive_segments
from harvest_lib.postgres.database import connect
from harvest_lib.outbox import OutboxTable

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
connection = connect(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
list(archive_segments(connection, OutboxTable.parse("outbox"), sys.argv[2]))
"""


@pytest.mark.full
def test_a_disk_that_is_full_at_any_file_leaves_a_state_from_which_the_next_run_goes_on(native, tmp_path):
    """By a limit for the size of a file, as the file that names the outbox is smaller than records are."""
    native.write(SEGMENT)
    native.subscribe(native.snapshot())
    for limit in (10, 300):
        place = tmp_path / str(limit)
        command = [sys.executable, "-c", LIMITED, native.dsn, str(place), str(limit)]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "could not be written" in refused.stderr
        assert not [each for each in place.rglob("*") if each.name.endswith(".new")], "it takes no room"
        assert "not in the archive yet" in dropped(native).because
        assert archive(native, str(place))[0].records == SEGMENT - 1
        assert [each.records for each in verify_archive(str(place))] == [SEGMENT - 1]
        native.connection.execute("DROP TABLE outbox_archived")


def test_an_attempt_to_archive_again_that_fails_costs_nothing(native, url, monkeypatch):
    """The archive stays whole, and the segment stays until it is archived anew."""
    native.write(SEGMENT)
    native.subscribe(native.snapshot())
    archive(native, url)
    closed = closed_segments(native.connection, native.table)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(HashingFile, "write", full)
        with pytest.raises(ArchiveError, match="could not be written"):
            archive(native, url, closed)
    assert [each.records for each in verify_archive(url)] == [SEGMENT - 1]
    assert "not in the archive yet" in dropped(native).because
    assert archive(native, url)
    assert dropped(native).dropped == ["outbox_from_0"]


def test_ids_that_begin_again_take_nothing_from_the_archive(native, url, tmp_path):
    native.write(SEGMENT)
    archive(native, url)
    expected = archived_rows(url)
    native.connection.execute("TRUNCATE outbox RESTART IDENTITY")
    assert archive(native, url) == [], "it is open again"
    native.write(SEGMENT)
    native.subscribe(native.snapshot())
    with pytest.raises(ArchiveError, match="another segment"):
        archive(native, url)
    assert archived_rows(url) == expected
    assert dropped(native).dropped == []
    assert archive(native, str(tmp_path / "the next"))[0].records == SEGMENT - 1
    assert dropped(native).dropped == ["outbox_from_0"]


def test_a_segment_is_not_rewritten_under_the_snapshot_that_reads_it(native, url, dsn):
    """A rewritten table has no rows in a snapshot from before."""
    native.write(SEGMENT)
    tried = []

    class Watched(psycopg.Connection):
        def execute(self, query, *arguments, **options):
            done = super().execute(query, *arguments, **options)
            if "set_config(name" in str(query) and not tried:  # the snapshot is taken
                with psycopg.connect(dsn, autocommit=True) as other:
                    other.execute("SET lock_timeout = '100ms'")
                    try:
                        other.execute("TRUNCATE outbox_from_0")
                        tried.append("done")
                    except psycopg.errors.LockNotAvailable:
                        tried.append("waits")
            return done

    with Watched.connect(dsn, autocommit=True) as connection:
        (done,) = archive_segments(connection, native.table, url)
    assert (tried, done.records) == (["waits"], SEGMENT - 1)


def test_an_archive_that_is_no_folder(native):
    native.write(SEGMENT)
    url = f"memory://{native.dsn.rsplit('=', 1)[-1]}/archive"
    assert archive(native, url)
    assert [each.records for each in verify_archive(url)] == [SEGMENT - 1]


def test_two_do_not_archive_at_once(native, url, dsn):
    native.write(2 * SEGMENT)
    first = archive_segments(native.connection, native.table, url)
    next(first)
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        pytest.raises(DatabaseError, match="another command archives"),
    ):
        list(archive_segments(connection, native.table, url))
    assert len(list(first)) == 1


KILLED = """
import os, sys
from harvest_lib.archive import archive_segments, files
from harvest_lib.postgres.database import connect
from harvest_lib.outbox import OutboxTable

seen = 0
def after(what):
    def done(*arguments, **options):
        global seen
        result = what(*arguments, **options)
        seen += 1
        if seen == int(sys.argv[3]):
            os._exit(9)
        return result
    return done

for name in ("written", "check_bytes", "_write_json", "publish", "opened"):
    setattr(files.ArchiveFiles, name, after(getattr(files.ArchiveFiles, name)))
for each in archive_segments(connect(sys.argv[1]), OutboxTable.parse("outbox"), sys.argv[2]):
    print(each.segment)
"""


@pytest.mark.full
def test_killed_at_every_step_it_is_finished_by_the_next_run(native, url):
    native.write(2 * SEGMENT + 1)
    native.subscribe(native.snapshot())
    expected = rows(native, 2 * SEGMENT - 1)
    for step in range(1, 100):
        command = [sys.executable, "-c", KILLED, native.dsn, url, str(step)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 9}, done.stderr
        archived = set(ArchivedSegments(native.table).names(native.connection, url)) if step > 1 else set()
        assert {each.segment for each in ArchiveFiles(url).manifests()} >= archived
        if done.returncode == 0:
            break
        native.connection.execute("DROP TABLE IF EXISTS outbox_archived")
        for manifest in ArchiveFiles(url).manifests()[1:]:
            (Path(url) / "segments" / f"{manifest.segment}.json").unlink()
    assert step > 8
    archive(native, url)
    assert archived_rows(url) == expected
    assert dropped(native).dropped == ["outbox_from_0", "outbox_from_10"]
