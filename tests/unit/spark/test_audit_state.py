"""The state of audits without Spark: whose it is, what damages it, and what an audit that dies leaves."""

import json
from dataclasses import replace

import pytest

from harvest_lib.spark.audit.kafka_side import Log
from harvest_lib.spark.audit.run import _since
from harvest_lib.spark.audit.state import AuditStateError, Mark, Past, Whose, held

pytestmark = pytest.mark.quick

WHOSE = Whose(outbox="7421/5/16400", reads="'default', topics all, keys all", topics={"t": "id-1", "u": ""})
MARK = Mark(
    ends={"t": {"0": 5}},
    snapshot="10:10:",
    seen={"from": [0, 0], "floor": 0, "rows": [[1, 7]]},
    server={"system": "7421", "timeline": "00000001", "lsn": "0/1"},
)


def audited(folder, *, full=False, saves=True, whose=WHOSE):
    """Do as an audit does; return what it found of earlier ones."""
    with held(folder, whose, full=full) as state:
        for name in ("copies", "ends", "open"):
            (state.new / name).mkdir(parents=True)
            (state.new / name / "part.parquet").write_bytes(f"{name} of {state.new.name}".encode())
        if saves:
            state.save(MARK, {"records": 5})
        return state.past


def test_each_audit_finds_the_copies_of_all_and_the_rest_of_the_last(tmp_path):
    assert audited(tmp_path) is None
    first = audited(tmp_path)
    assert (first.mark, first.numbers, first.generations) == (MARK, {"records": 5}, [1])
    second = audited(tmp_path, saves=False)
    assert second.copies == [str(tmp_path / "1" / "copies"), str(tmp_path / "2" / "copies")]
    assert second.latest("ends") == str(tmp_path / "2" / "ends")
    assert second.latest("pending") is None
    assert not (tmp_path / "1" / "ends").exists(), "what nobody reads is deleted"


def test_an_audit_that_died_leaves_the_state_that_was(tmp_path):
    audited(tmp_path)
    audited(tmp_path, saves=False)
    audited(tmp_path, saves=False, full=True)
    assert audited(tmp_path).generations == [1]


def test_full_forgets_what_was_there(tmp_path):
    audited(tmp_path)
    assert audited(tmp_path, full=True) is None
    assert len(audited(tmp_path).generations) == 1
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outbox": "7421/5/99"}, "another outbox"),
        ({"reads": "'eu', topics all, keys all"}, "another subscription"),
        ({"topics": {"t": "id-1"}}, "another set of topics"),
        ({"topics": {"t": "id-2", "u": ""}}, "'t' was recreated"),
    ],
)
def test_a_state_of_something_else_is_refused(tmp_path, changes, said):
    audited(tmp_path)
    with pytest.raises(AuditStateError, match=rf"{said}[\s\S]*--full"):
        audited(tmp_path, whose=replace(WHOSE, **changes))
    assert audited(tmp_path).generations == [1]


@pytest.mark.parametrize("topics", [{"t": "", "u": ""}, {"t": "id-1", "u": "id-9"}])
def test_an_id_of_a_topic_that_was_not_told_is_no_other_one(tmp_path, topics):
    audited(tmp_path)
    assert audited(tmp_path, whose=replace(WHOSE, topics=topics)).generations == [1]


def _without_brace(text):
    return text[:-2]


def _newer(text):
    return json.dumps({**json.loads(text), "version": 4})


def _counts_more(text):
    return text.replace('"records": 5', '"records": 6')


@pytest.mark.parametrize(
    ("damage", "said"),
    [(_without_brace, "cannot be read"), (_newer, "is of version 4"), (_counts_more, "checksum differs")],
)
def test_a_manifest_that_was_altered_is_refused(tmp_path, damage, said):
    audited(tmp_path)
    manifest = tmp_path / "manifest.json"
    text = manifest.read_text()
    assert damage(text) != text
    manifest.write_text(damage(text))
    with pytest.raises(AuditStateError, match=said):
        audited(tmp_path)
    assert audited(tmp_path, full=True) is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"copies of 2"), "was altered"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.with_name("more.parquet").touch(), "was added"),
    ],
)
def test_files_that_were_altered_are_refused(tmp_path, damage, said):
    audited(tmp_path)
    damage(tmp_path / "1" / "copies" / "part.parquet")
    with pytest.raises(AuditStateError, match=said):
        audited(tmp_path)


def test_one_audit_at_a_time_holds_the_folder(tmp_path):
    with held(tmp_path, WHOSE, full=False), pytest.raises(AuditStateError, match="another audit is at work"):
        audited(tmp_path)
    assert audited(tmp_path) is None


def test_of_a_log_what_came_since_is_read_and_a_shorter_one_is_refused(tmp_path):
    """Below where it ended, unless retention has deleted that; of a new partition everything."""
    past = Past(mark=MARK, numbers={}, generations=[1], folder=tmp_path)
    logs = {("t", 0): Log(low=2, high=9), ("t", 1): Log(low=3, high=4)}
    assert _since(logs, past) == {("t", 0): Log(low=5, high=9), ("t", 1): Log(low=3, high=4)}
    assert _since(logs, None) == logs
    assert _since({("t", 0): Log(low=7, high=9)}, past) == {("t", 0): Log(low=7, high=9)}
    with pytest.raises(AuditStateError, match=r"shorter than it was[\s\S]*--full"):
        _since({("t", 0): Log(low=0, high=4)}, past)
