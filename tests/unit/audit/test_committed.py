"""Files of committed records: their format, and the line that is named when they hold something else."""

import json

import pytest

from harvest_lib.audit import read_file
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def known(records):
    """Return ids and keys: a file says nothing of contents."""
    found = list(records)
    assert all(each.content is None for each in found)
    return [(each.id, each.key) for each in found]


def test_csv(tmp_path):
    path = write(tmp_path, "c.csv", 'key,id,topic\nN1,1,t\n"a, ""b""",2,t\n,3,t\nN4,4,other\n')
    assert known(read_file(path, topics=["t"])) == [(1, b"N1"), (2, b'a, "b"'), (3, None)]


def test_csv_with_ids_only_a_byte_order_mark_and_carriage_returns(tmp_path):
    assert known(read_file(write(tmp_path, "c.CSV", b"\xef\xbb\xbfid\r\n1\r\n-2\r\n"))) == [(1, None), (-2, None)]


def test_json_lines(tmp_path):
    lines = [{"id": 1, "key": "é"}, {"id": "2"}, {"id": 3, "key": None, "topic": "t"}, {"id": 4, "topic": "u"}]
    path = write(tmp_path, "c.jsonl", "\n\n".join(map(json.dumps, lines)) + "\n")
    assert known(read_file(path, topics=["t"])) == [(1, "é".encode()), (2, None), (3, None)]


def test_a_key_that_is_not_utf8_stays_what_it_is(tmp_path):
    assert known(read_file(write(tmp_path, "c.csv", b"id,key\n1,\xff\xfe\n"))) == [(1, b"\xff\xfe")]


@pytest.mark.parametrize("name", ["c.csv", "c.jsonl"])
def test_an_empty_file(tmp_path, name):
    path = write(tmp_path, name, "")
    if name.endswith("csv"):
        with pytest.raises(ConfigError, match="column `id`"):
            list(read_file(path))
    else:
        assert known(read_file(path)) == []


@pytest.mark.parametrize(
    ("name", "content", "line", "reason"),
    [
        ("c.csv", "identity,key\n1,a\n", 1, "column `id`"),
        ("c.csv", "id,key\n1,a\nx,b\n", 3, "'x'"),
        ("c.csv", "id,key\n1,a\n\n,b\n", 4, "invalid literal"),
        ("c.csv", f"id\n{2**63}\n", 2, "64 bits"),
        ("c.csv", b"id\n1\n\xff\n", 3, "invalid literal"),
        ("c.csv", "id,key\n1," + "x" * 200_000 + "\n", 2, "field larger"),
        ("c.jsonl", '{"id": 1}\n{"id": 2\n', 2, "not JSON"),
        ("c.jsonl", '{"id": 1}\n[2]\n', 2, "not a JSON object"),
        ("c.jsonl", '{"id": 1}\n{"key": "a"}\n', 2, "no `id`"),
        ("c.jsonl", '{"id": 1.5}\n', 1, "type float"),
        ("c.jsonl", '{"id": true}\n', 1, "type bool"),
        ("c.jsonl", '{"id": null}\n', 1, "type NoneType"),
        ("c.jsonl", '{"id": 1, "key": "\\ud800"}\n', 1, "surrogates not allowed"),
    ],
)
def test_a_malformed_file_names_the_line(tmp_path, name, content, line, reason):
    path = write(tmp_path, name, content)
    with pytest.raises(ConfigError, match=reason) as raised:
        list(read_file(path))
    assert (raised.value.source, raised.value.line, raised.value.exit_code) == (str(path), line, 3)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        list(read_file(tmp_path / "none.csv"))
