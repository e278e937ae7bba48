"""Messages that a transform failed at: parked before they count as acknowledged, and found again."""

import os
import random
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from support.pipelines import Script, Taking, declared, message, messages
from support.power import MEMORY, Power

from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.folder import open_folder, parked_messages
from harvest_lib.pipeline.parked_messages import ParkedMessages

pytestmark = pytest.mark.quick

SETTINGS = {
    "c0": {"on_transform_error": "park", "transforms": [("fails", lambda each: 1 // (each.data["n"] % 2) and each)]}
}


@pytest.fixture
def file(tmp_path):
    return ParkedMessages(tmp_path / "c0.jsonl")


def offsets(file):
    return [line["offset"] for line in file]


def test_each_offset_is_there_once_in_order(file):
    assert offsets(file) == []
    for number in (0, 3, 3, 5, 3):
        file.add(message("A", number)._replace(offset=number), "raised")
    assert offsets(file) == [0, 3, 5]


def test_the_file_is_not_read_as_a_whole(file):
    size, count = 100_000, 100
    for number in range(count):
        file.add(message("A", number, text="x" * size)._replace(offset=number), "raised")
    tracemalloc.start()
    try:
        assert sum(1 for _ in file) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * size < count * size


@pytest.mark.parametrize("name", ["plain", "vuelos públicos ✈", "half a \ud800 character"])
def test_a_line_torn_at_any_byte_costs_no_other(file, name):
    first, second, third = (message(name, number)._replace(offset=number) for number in range(3))
    file.add(first, "raised")
    kept = file.path.stat().st_size
    file.add(second, "raised")
    whole = file.path.read_bytes()
    for size in range(kept, len(whole)):
        file.path.write_bytes(whole[:size])
        second_is = [1] if size == len(whole) - 1 else []  # a line is whole without its end, too
        assert offsets(file) == [0, *second_is]
        file.add(third, "raised")
        assert offsets(file) == [0, *second_is, 2]
        assert [line["namespace"] for line in file] == [name] * len(offsets(file))


def test_what_was_parked_and_acknowledged_outlives_the_machine():
    """In folders that were not there before, and whatever a disk forgets of what was not synced."""
    for seed in range(40):
        with tempfile.TemporaryDirectory(dir=MEMORY) as root, Power(root, random.Random(seed)).on() as power:
            folder = Path(root) / "of" / "flights"
            os.mkdir(folder.parent)  # noqa: PTH102 - what Power stands between
            power.fsync(os.open(root, os.O_RDONLY))
            declaration = declared(folder, Script(), {"c0": Taking()}, settings=SETTINGS)
            with open_folder(declaration) as logs:
                logs.log.append(encoded(messages("AAAA")))
                writing, c0 = logs.writer_progress(declaration.writers[0]), Taking()
                assert [each and each.offset for each in writing.resume(c0, 4)] == [None, 1, None, 3]
                writing.flush()
                power.lose()
                logs.abandoned = True
            with open_folder(declaration) as logs:
                assert (logs.log.end, logs.offsets["c0"].position) == (4, 4)
                assert offsets(parked_messages(folder, "c0")) == [0, 2]
