"""Promises of file writers about the disk: kills at any call, no room, folders and files that change under them."""

import os
import resource
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.pipeline_files import everything, message, reader, writer

from harvest_lib.errors import AdaptorError

pytestmark = pytest.mark.quick


@pytest.fixture
def synced(monkeypatch):
    """Return the syncs, in order: folders with the names that they had, files with their sizes."""
    found, real = [], os.fsync

    def fsync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        names = sorted(each.name for each in path.iterdir()) if path.is_dir() else None
        found.append((path, os.fstat(descriptor).st_size if names is None else names))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_lines_and_the_names_of_their_files_are_on_the_disk_when_they_count(tmp_path, synced):
    path = tmp_path / "deep" / "er" / "t.jsonl"
    made = writer(path)
    made.write([message(id=1)])
    for folder in (tmp_path, tmp_path / "deep"):
        assert any(each == folder and child in names for each, names in synced for child in ("deep", "er"))
    assert (path.parent, ["t.jsonl"]) in synced
    assert synced[-1] == (path, path.stat().st_size)
    made.write([message(id=2)])
    assert synced[-1] == (path, path.stat().st_size)
    made.close()


def test_a_parquet_file_is_on_the_disk_before_it_has_its_name_and_that_is_before_it_counts(tmp_path, synced):
    writer(tmp_path / "lake", format="parquet").write([message(id=1)])
    folder = tmp_path / "lake" / "public.t"
    file = folder / "00000001.parquet"
    assert (tmp_path, ["lake"]) in synced
    assert (tmp_path / "lake", ["public.t"]) in synced
    assert synced[-2:] == [(file.with_suffix(".unfinished"), file.stat().st_size), (folder, [file.name])]


def test_a_torn_tail_is_cut_off_for_good_before_anything_follows(tmp_path, synced):
    path = tmp_path / "t.jsonl"
    path.write_text('{"op":"ins')
    made = writer(path)
    made.write([message(id=1)])
    made.close()
    assert synced.index((path, 0)) < synced.index((path, path.stat().st_size))


class Killed(BaseException):
    """Nobody may catch it and clean up."""


@pytest.mark.parametrize("file_format", ["json_lines", "parquet"])
def test_killed_at_any_call_what_counted_is_there_and_the_next_one_goes_on(tmp_path, monkeypatch, file_format):
    left = 0

    def counted(real):
        def call(*arguments):
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    for kill_at in range(1, 40):
        path = tmp_path / str(kill_at) / "t"
        counts, left = [], kill_at
        with suppress(Killed):
            made = writer(path, format=file_format)
            for number in range(3):
                made.write([message(id=number), message(namespace="u", id=number)])
                counts += [("public.t", number), ("u", number)]
        killed, left = left == 0, 0
        made = writer(path, format=file_format)
        made.write([message(id=7)])
        made.close()
        found = {(each.namespace, each.data["id"]) for each in everything(reader(path, format=file_format))[0]}
        assert found >= {*counts, ("public.t", 7)}
        if not killed:
            return
    pytest.fail("it never got through")


@contextmanager
def room_for(size):
    """Files may have so many bytes and no more, as on a disk that is full then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("file_format", ["json_lines", "parquet"])
def test_without_room_it_is_said_nothing_is_left_in_parts_and_with_room_it_goes_on(tmp_path, file_format):
    path = tmp_path / "t"
    made = writer(path, format=file_format)
    made.write([message(id=1)])
    with room_for(3_000), pytest.raises(AdaptorError, match="cannot be written") as error:
        made.write([message(id=2, text=os.urandom(8_000))])
    assert "File too large" in error.value.evidence
    assert len(everything(reader(path, format=file_format))[0]) == 1
    made.write([message(id=3)])
    made.close()
    assert [each.data["id"] for each in everything(reader(path, format=file_format))[0]] == [1, 3]
    assert not list(tmp_path.rglob("*.unfinished"))


@pytest.mark.parametrize("file_format", ["json_lines", "parquet"])
def test_two_writers_of_one_place_take_nothing_from_each_other(tmp_path, file_format):
    def many(first):
        made = writer(tmp_path / "t", format=file_format)
        for number in range(first, first + 40):
            while True:
                try:
                    made.write([message(id=number, text="x" * 500), message(id=number + 1_000)])
                    break
                except AdaptorError as error:  # the other one had the same number in mind
                    assert "made by another" in str(error)  # noqa: PT017 - it may come or not
        made.close()

    threads = [threading.Thread(target=many, args=(first,)) for first in (0, 100)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = [each.data["id"] for each in everything(reader(tmp_path / "t", format=file_format))[0]]
    numbers = [*range(40), *range(100, 140)]
    assert sorted(found) == sorted([*numbers, *(number + 1_000 for number in numbers)])


def test_a_file_that_is_moved_away_gets_nothing_more(tmp_path):
    path = tmp_path / "t.jsonl"
    made = writer(path)
    made.write([message(id=1)])
    path.rename(tmp_path / "old.jsonl")
    made.write([message(id=2)])
    path.unlink()
    made.write([message(id=3)])
    made.close()
    assert [each.data["id"] for each in everything(reader(tmp_path / "old.jsonl"))[0]] == [1]
    assert [each.data["id"] for each in everything(reader(path))[0]] == [3]
