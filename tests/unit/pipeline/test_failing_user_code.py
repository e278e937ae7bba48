"""The effect of others' code on a pipeline: transforms that raise, drop and exit, readers and writers that exit."""

import sys

import pytest
from support.pipelines import Script, Taking, anything, declared, messages, run

from harvest_lib.errors import PipelineError
from harvest_lib.pipeline import operations
from harvest_lib.pipeline.folder import parked_messages

pytestmark = pytest.mark.quick


def raising(message):
    if message.data["n"] == 2:
        raise KeyError("tailnum")
    return message


def exiting(message):
    if message.data["n"] == 2:
        sys.exit("no more")
    return message


@pytest.mark.parametrize(("fails", "says"), [(raising, "KeyError: 'tailnum'"), (exiting, "SystemExit: no more")])
def test_a_transform_that_fails_stops_the_pipeline_after_what_came_before_or_parks_it(tmp_path, fails, says):
    settings, c0 = {"c0": {"transforms": [("fails", fails)]}}, Taking()
    reader = Script(messages("AAAA"), batch=4)
    for _ in range(2):
        with pytest.raises(PipelineError, match=rf"(?s)offset 2.*raised {says}.*ack 2 --without-sending"):
            run(tmp_path, reader, {"c0": c0}, settings=settings)
    assert c0.offsets == [0, 1]
    settings["c0"]["on_transform_error"] = "park"
    declaration = run(tmp_path, reader, {"c0": c0}, settings=settings)
    assert c0.offsets == [0, 1, 3]
    (line,) = parked_messages(tmp_path, "c0")
    assert (line["offset"], line["namespace"], line["data"]) == (2, "A", '{"n":2}')
    assert says.split(":")[0] in line["reason"]
    assert operations.pipeline_status(declaration).writers[0].parked == 1


def test_a_writer_that_exits_did_not_take_what_it_was_given(tmp_path):
    with pytest.raises(PipelineError, match=r"(?s)did not take.*SystemExit: no more"):
        run(tmp_path, Script(messages("AA")), {"c0": Taking(anything, SystemExit("no more"))})
    with pytest.raises(PipelineError, match="did not take offset 0"):
        list(operations.step(declared(tmp_path, Script(), {"c0": Taking(anything, SystemExit("no more"))})))


def test_a_transform_that_drops_a_message_has_it_acknowledged(tmp_path):
    settings, c0 = {"c0": {"transforms": [("odd", lambda each: each if each.data["n"] % 2 else None)]}}, Taking()
    declaration = run(tmp_path, Script(messages("A" * 9)), {"c0": c0}, settings=settings)
    assert c0.offsets == [1, 3, 5, 7]
    assert operations.pipeline_status(declaration).writers[0].position == 9
