"""Promises of the file formats beyond the contract: torn tails, files that are never written over, odd values."""

import builtins
import json
import logging
import math
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.pipeline_files import AT, everything, message, reader, writer

from harvest_lib.errors import AdaptorError, MessageRefused, PositionLost, install_hint
from harvest_lib.pipeline.adaptors.file.paths import file_name, namespace_of
from harvest_lib.pipeline.adaptors.stdout import StdoutWriter, StdoutWriting
from harvest_lib.pipeline.message import Op, PipelineMessage

pytestmark = pytest.mark.quick

ODD = {
    "id": 1,
    "bytes": b"\0\xff",
    "price": Decimal("1.10"),
    "huge": 2**80,
    "at": datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC),
    "nested": {"$a": [1, Decimal("2.50")]},
    "no": None,
    "nan": math.inf,
    "endless": Decimal("Infinity"),
    "yes": True,
    "text": "é\n",
}


@pytest.mark.parametrize("file_format", ["json_lines", "parquet"])
def test_every_type_comes_back_as_it_was(tmp_path, file_format):
    path = tmp_path / "deep" / "er"
    writer(path, format=file_format).write([message(**ODD), message(Op.DELETE, id=1), message(Op.UPDATE, **ODD)])
    first, gone, second = everything(reader(path, format=file_format))[0]
    assert first == message(**ODD)._replace(offset=-1)
    assert [type(value) for value in first.data.values()] == [type(value) for value in ODD.values()]
    assert (gone.op, gone.data) == (Op.DELETE, {"id": 1})
    assert second.op is Op.UPDATE


# -- JSON lines


def test_one_file_per_namespace(tmp_path):
    writer(tmp_path / "{namespace}.jsonl").write([message(namespace="a/../b", id=1), message(namespace="c", id=2)])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a%2F..%2Fb.jsonl", "c.jsonl"]


def test_a_line_that_a_crash_left_unfinished_is_cut_off_and_told(tmp_path, caplog):
    path = tmp_path / "t.jsonl"
    whole = b'{"op":"insert","timestamp":1,"namespace":"t","data":{"id":1}}\n'
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        with caplog.at_level(logging.WARNING):
            made = writer(path)
            made.write([message(namespace="t", id=2)])
            made.close()
        assert [each.data["id"] for each in everything(reader(path))[0]] == [1, 2]
    path.write_bytes(whole[:-1])
    writer(path).write([message(namespace="t", id=3)])
    assert [each.data["id"] for each in everything(reader(path))[0]] == [3]
    assert {each.message for each in caplog.records} == {"unfinished_line_cut"}


def test_what_another_writer_was_killed_at_is_cut_off_too(tmp_path):
    path = tmp_path / "t.jsonl"
    made = writer(path)
    made.write([message(id=1)])
    with path.open("a") as other:
        other.write('{"op":"insert","timest')
    made.write([message(id=2)])
    made.close()
    assert [each.data["id"] for each in everything(reader(path))[0]] == [1, 2]


def test_bare_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    writer(path, content="data").write([message(id=1)])
    assert json.loads(path.read_text()) == {"id": 1}
    (row,), _ = everything(reader(path, content="data"))
    assert (row.op, row.namespace, row.data) == (Op.INSERT, "rows", {"id": 1})
    with pytest.raises(MessageRefused, match="message 7, a delete"):
        writer(path, content="data").write([message(Op.DELETE, offset=7, id=1)])


@pytest.mark.parametrize(
    ("text", "byte"),
    [
        ('{"op":"insert","timestamp":1,"namespace":"t","data":{}}\n{"id":1}\n', 56),
        ('{"secret', 0),
        ('{"op":"insert","timestamp":-1,"namespace":"t","data":{}}', 0),
        ('{"op":"insert","timestamp":18446744073709551616,"namespace":"t","data":{}}', 0),
        ('{"op":"insert","timestamp":1,"namespace":"\\ud800","data":{}}', 0),
        ('{"op":"upsert","timestamp":1,"namespace":"t","data":{}}', 0),
        ('{"op":"insert","timestamp":1,"namespace":"t","data":[]}', 0),
    ],
)
def test_a_line_that_is_no_message_or_none_that_the_log_takes_is_named_by_its_byte(tmp_path, text, byte):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(MessageRefused, match=f"at byte {byte}:") as refused:
        everything(reader(path))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("last_id", "ids", "says"),
    [
        (2, [], "shorter"),
        (2, range(3, 9), "not the file that was read"),
        (7, [2, 7, 8], "not the file that was read"),  # the same line stands at the same place
    ],
)
def test_another_file_in_its_place_is_refused_however_long_it_is(tmp_path, last_id, ids, says):
    path = tmp_path / "t.jsonl"
    writer(path).write([message(id=1), message(id=last_id)])
    _, last = everything(reader(path))
    path.unlink()
    path.touch()
    writer(path).write([message(id=number) for number in ids])
    with pytest.raises(PositionLost, match=says):
        everything(reader(path), last)


@pytest.mark.parametrize(("ids", "says"), [([], "shorter"), (range(2, 9), "not the file that was read")])
def test_a_file_that_is_cut_while_it_is_followed_is_noticed_though_it_grows_again(tmp_path, ids, says):
    path = tmp_path / "t.jsonl"
    writer(path).write([message(id=1)])
    batches = reader(path, follow=True).read({})
    assert [each.op for each in next(batches)] == [Op.INSERT, Op.NOOP]
    path.write_text("")
    writer(path).write([message(id=number) for number in ids])
    with pytest.raises(PositionLost, match=says):
        next(batches)


def test_a_file_that_is_replaced_while_it_is_followed_is_read_to_its_end_and_then_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    writer(path).write([message(id=1)])
    batches = reader(path, follow=True).read({})
    last = {each.namespace: each for each in next(batches)}
    with path.open("ab") as old:  # as a writer that has it open
        path.rename(tmp_path / "t.jsonl.1")
        assert next(batches) == []
        writer(path).write([message(id=number) for number in range(2, 9)])
        old.write((tmp_path / "t.jsonl.1").read_bytes())
    assert next(batches)[0].data["id"] == 1
    with pytest.raises(PositionLost, match="another file has its name"):
        next(batches)
    with pytest.raises(PositionLost, match="not the file that was read"):
        everything(reader(path), last)


def test_a_copy_of_the_file_in_its_place_is_the_same(tmp_path):
    path = tmp_path / "t.jsonl"
    writer(path).write([message(id=1)])
    _, last = everything(reader(path))
    lines = path.read_bytes()
    path.unlink()
    path.write_bytes(lines)
    writer(path).write([message(id=2)])
    assert [each.data["id"] for each in everything(reader(path), last)[0]] == [2]


def test_a_last_line_without_an_end_waits_for_it_only_where_the_file_is_followed(tmp_path):
    path = tmp_path / "t.jsonl"
    line = '{"op":"insert","timestamp":1,"namespace":"t","data":{}}'
    path.write_text(line)
    assert len(everything(reader(path))[0]) == 1
    batches = reader(path, follow=True).read({})
    assert next(batches) == []
    path.write_text(line + "\n")
    assert next(batch for batch in batches if batch)[0].namespace == "t"


@pytest.mark.parametrize("file_format", ["json_lines", "parquet"])
def test_where_nothing_can_be_written_the_path_and_the_reason_are_told(tmp_path, file_format):
    (tmp_path / "file").write_text("")
    with pytest.raises(AdaptorError, match=r"cannot be written(?s:.)*(Not a directory|File exists)"):
        writer(tmp_path / "file" / "x", format=file_format).write([message(id=1)])
    with pytest.raises(AdaptorError, match=r"nowhere.* cannot be read"):
        everything(reader(tmp_path / "nowhere", format=file_format))


# -- Parquet


def test_each_batch_is_a_file_and_none_is_written_over(tmp_path):
    first = writer(tmp_path, format="parquet")
    first.write([message(id=1, offset=4), message(namespace="u", id=2, offset=5)])
    first.write([message(id=1, name="x", offset=6)])
    (tmp_path / "public.t" / "00000003.unfinished").write_text("left by a crash")
    writer(tmp_path, format="parquet").write([message(Op.DELETE, id=1, offset=7)])
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.*") if each.is_file()) == [
        "public.t/00000001.parquet",
        "public.t/00000002.parquet",
        "public.t/00000003.parquet",
        "u/00000001.parquet",
    ]
    table = pq.read_table(tmp_path / "public.t" / "00000002.parquet").to_pylist()
    assert table == [
        {"_op": "insert", "_timestamp": datetime.fromtimestamp(AT / 1000, UTC), "_offset": 6, "id": 1, "name": "x"}
    ]
    other = writer(tmp_path, format="parquet")
    other.write([message(id=3)])
    with pytest.raises(AdaptorError, match="made by another"):
        first.write([message(id=4)])  # its next is the other's
        first.write([message(id=4)])


def test_it_goes_on_after_the_files_that_were_read(tmp_path):
    made = writer(tmp_path, format="parquet")
    made.write([message(id=1), message(namespace="z", id=2)])
    found, last = everything(reader(tmp_path, format="parquet"))
    assert [each.data["id"] for each in found] == [1, 2]
    made.write([message(id=3)])
    assert [each.data["id"] for each in everything(reader(tmp_path, format="parquet"), last)[0]] == [3]
    for each in (tmp_path / "public.t").iterdir():
        each.rename(each.with_name("00000000.parquet"))
    with pytest.raises(PositionLost, match="has lost files"):
        everything(reader(tmp_path, format="parquet"), last)


def test_a_folder_that_was_written_anew_is_refused_however_many_files_it_has(tmp_path):
    made = writer(tmp_path, format="parquet")
    made.write([message(id=1)])
    made.write([message(id=2)])
    _, last = everything(reader(tmp_path, format="parquet"))
    for each in (tmp_path / "public.t").iterdir():
        each.unlink()
    again = writer(tmp_path, format="parquet")
    for number in range(3, 7):
        again.write([message(id=number)])
    with pytest.raises(PositionLost, match=r"00000002\.parquet is not the file that was read"):
        everything(reader(tmp_path, format="parquet"), last)


def test_files_of_others_are_rows(tmp_path):
    table = pq.read_table  # its writer knows nothing of us
    writer(tmp_path / "x", format="parquet").write([message(id=1)])
    plain = table(tmp_path / "x" / "public.t" / "00000001.parquet").select(["id"])
    pq.write_table(plain, tmp_path / "planes.parquet")
    (row,) = [each for each in everything(reader(tmp_path, format="parquet"))[0] if each.namespace == "planes"]
    assert (row.op, row.data) == (Op.INSERT, {"id": 1})


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.parquet").write_text("PAR1 not")
    with pytest.raises(AdaptorError, match=r"1\.parquet is no Parquet file"):
        everything(reader(tmp_path, format="parquet"))


def test_a_field_with_the_name_of_ours_is_refused(tmp_path):
    with pytest.raises(MessageRefused, match="_op"):
        writer(tmp_path, format="parquet").write([message(_op=1)])


def test_without_pyarrow_it_is_said_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__
    monkeypatch.setattr(
        builtins,
        "__import__",
        lambda name, *rest: real("nothing_of_this_name" if name.startswith("pyarrow") else name, *rest),
    )
    with pytest.raises(AdaptorError, match="needs the package pyarrow") as refused:
        writer(tmp_path, format="parquet")
    assert refused.value.next_step == install_hint("parquet")


def test_the_table_of_the_documented_example_is_that_of_the_source(tmp_path):
    made = writer(tmp_path, format="parquet")
    made.write([message(id=9, n="emptied"), message(Op.COMMAND, command="truncate"), message(id=1, n="a")])
    made.write([message(id=2, n="b"), message(Op.UPDATE, id=1, n="c")])
    made.write([message(Op.DELETE, id=2)])
    page = (Path(__file__).parents[3] / "docs" / "pipelines-adaptors.md").read_text()
    example = next(each for each in page.split("```") if each.startswith("python") and "pyarrow" in each)
    found = {}
    exec(example.removeprefix("python").replace("/var/lib/lake/public.flights", str(tmp_path / "public.t")), found)  # noqa: S102 - what we tell others to run
    assert {key: row["n"] for key, row in found["table"].items()} == {1: "c"}


# -- names, standard output


@pytest.mark.parametrize("namespace", ["public.flights", "..", ".", "a/b", "C:\\x", "é%", "a b"])
def test_names_of_files_lead_nowhere_else_and_back(namespace):
    name = file_name(namespace)
    assert name not in {".", ".."}
    assert "/" not in name
    assert namespace_of(name) == namespace


def test_lines_on_the_standard_output(capfdbinary):
    made = StdoutWriter(StdoutWriting())
    made.write([message(id=1), PipelineMessage(Op.NOOP, AT, "position", {}), message(Op.DELETE, id=1)])
    made.close()
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["op"] for line in lines] == ["insert", "delete"]
    assert lines[0] == {"op": "insert", "timestamp": AT, "namespace": "public.t", "data": {"id": 1}}


def test_an_output_that_nobody_reads_any_more_is_an_error(monkeypatch, tmp_path):
    with (tmp_path / "read-only").open("w+b") as file:
        file.close()
        monkeypatch.setattr(sys, "stdout", type("Stdout", (), {"buffer": file}))
        with pytest.raises(AdaptorError, match="standard output"):
            StdoutWriter(StdoutWriting()).write([message(id=1)])
