"""The worked scenarios of Transporter's design, by their names, with the offsets, keys and outcomes of its pictures."""

import pytest
from support.log_format import decode
from support.pipelines import Running, Script, Taking, anything, declared, messages, run
from support.waiting import eventually

from harvest_lib.errors import PipelineError
from harvest_lib.pipeline import operations
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.folder import offsets_folder, open_folder
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.settings import CommitLogSettings

pytestmark = pytest.mark.quick

KEYS = "AABBAABBCACBAACB"
"""Of the sixteen messages, at offsets 0 to 15."""


def test_normal_operation(tmp_path):
    reader, c0, c1 = Script(messages(KEYS)), Taking(), Taking()
    run(tmp_path, reader, {"c0": c0, "c1": c1})
    assert c0.offsets == c1.offsets == list(range(16))
    assert [each.namespace for write in c0.writes for each in write] == list(KEYS)
    assert max(map(len, c0.writes)) > 1 or len(c0.writes) < 16, "in bulk"
    assert {name: each.data["n"] for name, each in reader.kept_at[-1].items()} == {"A": 13, "B": 15, "C": 14}
    assert (reader.closed, c0.closed, c1.closed) == (1, 1, 1)


def test_normal_operation_with_an_offset_for_each_writer(tmp_path):
    """c0 gets A alone and c1 what is not A: each has an offset of its own, and both stand at the end."""
    reader, c0, c1 = Script(messages(KEYS)), Taking(), Taking()
    settings = {"c0": {"namespace": "^A$"}, "c1": {"namespace": "[^A]"}}
    run(tmp_path, reader, {"c0": c0, "c1": c1}, settings=settings)
    assert c0.offsets == [0, 1, 4, 5, 9, 12, 13]
    assert c1.offsets == [2, 3, 6, 7, 8, 10, 11, 14, 15]
    again = Taking()
    run(tmp_path, Script(), {"c0": again, "c1": again}, settings=settings)
    assert not again.writes, "what was not for a writer counts as acknowledged"


def test_normal_operation_terminated_and_restarted(tmp_path):
    """The log has offsets 0 to 15, c0 stands at 12 and c1 at 13: 13 to 15 are sent to c0 again and 14 to 15 to c1, one
    message at a time, and the reader waits until both stand at 15."""
    reader, c0, c1 = Script(messages(KEYS + "AB"), batch=2), Taking(), Taking()
    declaration = declared(tmp_path, reader, {"c0": c0, "c1": c1})
    with open_folder(declaration) as logs:
        logs.log.append(encoded(messages(KEYS)))
        for name, steps in {"c0": [1, 4, 6, 4, 7, 10, 12], "c1": [4, 5, 7, 13]}.items():
            for step in steps:
                logs.offsets[name].acknowledge(KEYS[step].encode(), step)
                logs.offsets[name].flush()
    standing = operations.pipeline_status(declaration)
    assert (standing.end, [each.position for each in standing.writers]) == (16, [13, 14])
    c1.gate.clear()
    running = Running(declaration)
    eventually(lambda: c0.offsets == [13, 14, 15])
    assert not reader.last, "c1 does not stand there"
    c1.gate.set()
    running.wait()
    assert running.failure is None
    assert [[each.offset for each in write] for write in c0.writes] == [[13], [14], [15], [16, 17]]
    assert [[each.offset for each in write] for write in c1.writes] == [[14], [15], [16, 17]]
    assert {name: each.offset for name, each in reader.last[0].items()} == {"A": 13, "B": 15, "C": 14}


def failed_bulk(folder):
    """Have c0 acknowledge 0 to 8, and fail at a bulk of 9 to 15: the design's scenario of this name."""
    c0 = Taking()
    run(folder, Script(messages("A" * 9), batch=9), {"c0": c0})
    c0.refuses = anything
    with pytest.raises(PipelineError, match="offsets 9 to 15"):
        run(folder, Script(messages("A" * 16), batch=16), {"c0": c0})
    assert c0.offsets == list(range(9))


def test_restart_with_resume(tmp_path):
    failed_bulk(tmp_path)
    c0, reader = Taking(), Script(messages("A" * 20), batch=4)
    run(tmp_path, reader, {"c0": c0})
    assert [[each.offset for each in write] for write in c0.writes] == [*([n] for n in range(9, 16)), [16, 17, 18, 19]]
    assert reader.last[0]["A"].data["n"] == 15, "the reader is given the last message it had sent down"
    assert reader.last[0]["A"].offset == 15


def at_14(batch):
    return any(each.offset >= 14 for each in batch)


def test_restart_with_resume_that_fails_stops_at_the_last_success(tmp_path):
    failed_bulk(tmp_path)
    for _ in range(2):
        c0, reader = Taking(at_14), Script(messages("A" * 20))
        with pytest.raises(PipelineError, match="offset 14"):
            run(tmp_path, reader, {"c0": c0})
        assert not reader.last, "the reader is not started"
    assert not c0.writes, "the second start begins at 14: 9 to 13 were acknowledged by the first"


def stuck_at_14(folder):
    """Have c0 stand at 14, which it does not take, and return its pipeline's declaration."""
    failed_bulk(folder)
    c0, reader = Taking(at_14), Script(messages("A" * 20))
    declaration = declared(folder, reader, {"c0": c0})
    with pytest.raises(PipelineError, match="offset 14"):
        Pipeline(declaration).run()
    return declaration, reader, c0


def test_operators_choices_view_messages_from_one_offset_to_another(tmp_path):
    declaration, *_ = stuck_at_14(tmp_path)
    shown = list(operations.messages(declaration, 13, 15))
    assert [each.offset for each in shown] == [13, 14, 15]
    assert shown[1]._replace(offset=-1) == messages("A" * 16)[14]
    (standing,) = operations.pipeline_status(declaration).writers
    assert (standing.position, standing.behind) == (14, 2)


def test_operators_choices_process_one_at_a_time(tmp_path):
    declaration, reader, c0 = stuck_at_14(tmp_path)
    with pytest.raises(PipelineError, match="offset 14"):
        list(operations.step(declaration))
    c0.refuses, c0.writes = (lambda batch: False), []
    for offset, behind in ((14, 1), (15, 0)):
        steps = operations.step(declaration)
        done = next(steps)
        assert operations.pipeline_status(declaration).writers[0].position == done.position, (
            "it is on the disk when it is reported"
        )
        assert next(steps, None) is None
        assert (done.sent.offset, done.position, done.behind) == (offset, offset + 1, behind)
    (done,) = operations.step(declaration)
    assert done.sent is None
    assert [[each.offset for each in write] for write in c0.writes] == [[14], [15]]
    assert not reader.last, "the reader is not started"
    Pipeline(declaration).run()
    assert c0.offsets == [14, 15, 16, 17, 18, 19]


def test_operators_choices_mark_as_acknowledged_without_sending(tmp_path):
    declaration, reader, c0 = stuck_at_14(tmp_path)
    c0.refuses = lambda batch: any(each.offset == 14 for each in batch)
    with pytest.raises(PipelineError, match="not the one at offset 15"):
        operations.acknowledge(declaration, 15)
    with pytest.raises(PipelineError, match="waits for no message at offset 13"):
        operations.acknowledge(declaration, 13)
    with pytest.raises(PipelineError, match="waits for no message at offset 16"):
        operations.acknowledge(declaration, 16)
    assert operations.acknowledge(declaration, 14).position == 15
    c0.writes = []
    Pipeline(declaration).run()
    assert c0.offsets == [15, 16, 17, 18, 19]
    assert reader.last[0]["A"].offset == 15


def test_compaction_leaves_the_newest_of_each_namespace_and_a_pipeline_goes_on(tmp_path):
    """Messages that every writer has passed are dropped from closed segments; the reader still gets its last ones."""
    log = CommitLogSettings(segment_bytes=4096, compact_seconds=0.0)
    given = [*messages("C"), *messages("AB" * 200, first=1)]
    c0, reader = Taking(), Script(given, batch=50)
    declaration = declared(tmp_path, reader, {"c0": c0}, log=log)
    Pipeline(declaration).run()
    before = operations.pipeline_status(declaration)
    assert operations.compact(declaration).segments > 0
    left = list(operations.messages(declaration, 0, before.end))
    assert left[0] == given[0]._replace(offset=0), "the newest of C, though it is the oldest of all"
    assert len(left) < len(given) / 4
    assert operations.pipeline_status(declaration).end == before.end
    offsets = b"".join(file.read_bytes() for file in sorted(offsets_folder(tmp_path, "c0").glob("*.log")))
    assert sorted(entry["key"] for entry in decode(offsets)) == [b"A", b"B", b"C"], "an offset for each namespace"
    again, c0.writes = Script([*given, *messages("AB", first=401)]), []
    run(tmp_path, again, {"c0": c0}, log=log)
    assert {name: each.offset for name, each in again.last[0].items()} == {"A": 399, "B": 400, "C": 0}
    assert c0.offsets == [401, 402]
