"""Messages that are still in memory: as they would be read from the log, nobody's to change, and not for ever there."""

import pytest
from support.pipelines import Script, Taking, declared, message

from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.extended_json import Encoded, dumps
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.quick


def test_data_is_not_changed_in_place(tmp_path):
    data = Encoded({"a": 1}, b'{"a":1}')
    for change in (
        lambda: data.update(b=2),
        lambda: data.pop("a"),
        lambda: data.__setitem__("a", 2),
        lambda: data.__delitem__("a"),
        lambda: data.setdefault("b", 1),
        data.clear,
        data.popitem,
    ):
        with pytest.raises(TypeError, match="return a message with other data"):
            change()
    assert {**data, "b": 2} == data | {"b": 2} == {"a": 1, "b": 2}
    assert dumps(data | {"b": 2}) == b'{"a":1,"b":2}'
    assert dumps(data.copy()) == dumps(data) == b'{"a":1}'


def test_what_a_function_does_inside_of_data_concerns_no_other_writer(tmp_path):
    def spoils(each):
        each.data["inner"].append("spoilt")
        return each

    one, other = Taking(), Taking()
    reader = Script([message("A", number, inner=["whole"]) for number in range(40)])
    settings = {"one": {"transforms": [("spoils", spoils)]}}
    Pipeline(declared(tmp_path, reader, {"one": one, "other": other}, settings=settings)).run()
    assert {tuple(each.data["inner"]) for write in other.writes for each in write} == {("whole",)}
    assert {len(each.data["inner"]) for write in one.writes for each in write} == {2}


def test_the_oldest_are_forgotten():
    cache, given = MessageCache(most_bytes=7_000), [message("A", number, text="x" * 80) for number in range(30)]
    for first in range(0, 30, 3):
        cache.add(first, encoded(given[first : first + 3]))
    assert list(cache.run(29, 30, 9).selected(lambda _head: True)) == [given[29]._replace(offset=29)]
    assert cache.run(0, 30, 9) is None
    left = [offset for offset in range(30) if cache.run(offset, 30, 9) is not None]
    assert left == list(range(left[0], 30))
    assert 6 <= len(left) <= 12
    cache.add(30, encoded([message("A", 30, text="x" * 8_000)]))
    assert cache.end == 31
    assert cache.run(30, 31, 9) is None
    assert cache.run(29, 31, 9).next == 30, "one that is too large costs no other its place"
    cache.add(31, encoded([message("A", 31)]))
    assert [cache.run(29, 32, 9).next, cache.run(31, 32, 9).next] == [30, 32], "what is missing is not passed over"
