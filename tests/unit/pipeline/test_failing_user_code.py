"""The effect of others' code on a pipeline: transforms that raise, drop and exit, readers and writers that exit."""

import sys
from dataclasses import replace

import pytest
from support.pipelines import Script, Taking, declared, messages

from harvest_lib.errors import PipelineError
from harvest_lib.pipeline import operations
from harvest_lib.pipeline.folder import parked_messages
from harvest_lib.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.quick


def raising(message):
    if message.data["n"] == 2:
        raise KeyError("tailnum")
    return message


def test_a_transform_that_raises_stops_the_pipeline_after_what_came_before(tmp_path):
    c0 = Taking()
    settings = {"c0": {"transforms": [("raising", raising)]}}
    reader = Script(messages("AAAA"), batch=4)
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"(?s)offset 2.*raised KeyError: 'tailnum'.*ack 2 --without-sending"):
            Pipeline(declared(tmp_path, reader, {"c0": c0}, settings=settings)).run()
    assert c0.offsets == [0, 1]


def exiting(message):
    sys.exit("no more")


def test_a_transform_that_exits_is_one_that_raises(tmp_path):
    c0 = Taking()
    settings = {"c0": {"transforms": [("exiting", exiting)]}}
    with pytest.raises(PipelineError, match=r"(?s)offset 0.*raised SystemExit: no more"):
        Pipeline(declared(tmp_path, Script(messages("AA")), {"c0": c0}, settings=settings)).run()
    settings["c0"]["on_transform_error"] = "park"
    Pipeline(declared(tmp_path, Script(messages("AA")), {"c0": c0}, settings=settings)).run()
    assert [line["offset"] for line in parked_messages(tmp_path, "c0")] == [0, 1]


def test_a_writer_that_exits_did_not_take_what_it_was_given(tmp_path):
    c0 = Taking()
    c0.refuses, c0.failing = lambda batch: True, SystemExit("no more")
    with pytest.raises(PipelineError, match=r"(?s)did not take.*SystemExit: no more"):
        Pipeline(declared(tmp_path, Script(messages("AA")), {"c0": c0})).run()
    with pytest.raises(PipelineError, match="did not take offset 0"):
        list(operations.step(declared(tmp_path, Script(), {"c0": c0})))


def test_a_reader_that_exits_has_failed_and_not_ended(tmp_path):
    class Exiting(Script):
        def read(self, _last):
            yield messages("AA")
            sys.exit(0)

    with pytest.raises(PipelineError, match=r"(?s)the reader failed.*SystemExit: 0"):
        Pipeline(declared(tmp_path, Exiting(), {"c0": Taking()})).run()


def test_a_writer_that_exits_while_it_connects_has_failed(tmp_path):
    declaration = declared(tmp_path, Script(messages("AA")), {"c0": Taking()})
    broken = replace(declaration, writers=[replace(declaration.writers[0], open=lambda: sys.exit(0))])
    with pytest.raises(PipelineError, match=r"(?s)writer `c0` failed.*SystemExit: 0"):
        Pipeline(broken).run()


def test_by_policy_what_a_transform_fails_at_is_parked(tmp_path):
    c0 = Taking()
    settings = {"c0": {"transforms": [("raising", raising)], "on_transform_error": "park"}}
    declaration = declared(tmp_path, Script(messages("AAAA"), batch=4), {"c0": c0}, settings=settings)
    Pipeline(declaration).run()
    assert c0.offsets == [0, 1, 3]
    (line,) = parked_messages(tmp_path, "c0")
    assert (line["offset"], line["namespace"], line["data"]) == (2, "A", '{"n":2}')
    assert "KeyError" in line["reason"]
    assert operations.pipeline_status(declaration).writers[0].parked == 1


def test_a_transform_that_drops_a_message_has_it_acknowledged(tmp_path):
    c0 = Taking()
    settings = {"c0": {"transforms": [("odd", lambda message: message if message.data["n"] % 2 else None)]}}
    declaration = declared(tmp_path, Script(messages("A" * 9)), {"c0": c0}, settings=settings)
    Pipeline(declaration).run()
    assert c0.offsets == [1, 3, 5, 7]
    assert operations.pipeline_status(declaration).writers[0].position == 9
