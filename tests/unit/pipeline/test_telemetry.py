"""The numbers and the health of a pipeline."""

import subprocess
import sys

import pytest
from support.pipelines import Running, Script, Taking, declared, messages
from support.scraping import get, scrape, series
from support.waiting import eventually

from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotState
from harvest_lib.pipeline.pipeline import Pipeline
from harvest_lib.pipeline.telemetry import PipelineTelemetry
from harvest_lib.telemetry import catalogue, server
from harvest_lib.telemetry.server import Listener

pytestmark = pytest.mark.quick


@pytest.fixture
def slow():
    taking = Taking()
    taking.gate.clear()
    yield taking
    taking.gate.set()


def test_each_writer_is_seen(tmp_path, slow):
    fast = Taking()
    declaration = declared(tmp_path, Script(messages("A" * 100), ends=False), {"slow": slow, "fast": fast})
    running = Running(declaration)
    with Listener("127.0.0.1:0", PipelineTelemetry(running.pipeline)) as listener:
        eventually(lambda: len(fast.offsets) == 100)
        eventually(lambda: get(listener.address, "/readyz")[0] == 200)
        found = scrape(listener.address)
        name = "test"
        reported = {each for each, _ in found if each.startswith("harvest_pipeline_")}
        assert reported == {each.name for each in catalogue.OF_PIPELINES}
        assert found["harvest_pipeline_running", (name,)] == 1
        assert found["harvest_pipeline_log_end_offset", (name,)] == 100
        behind = series(found, "harvest_pipeline_writer_behind_messages")
        assert behind == {(name, "slow"): 100, (name, "fast"): 0}
        assert series(found, "harvest_pipeline_writer_position") == {(name, "slow"): 0, (name, "fast"): 100}
        assert series(found, "harvest_pipeline_writer_at_work") == {(name, "slow"): 1, (name, "fast"): 1}
        stalled = series(scrape(listener.address), "harvest_pipeline_writer_stalled_seconds")
        assert stalled[name, "slow"] > stalled[name, "fast"] == 0
        eventually(lambda: "'slow' has stood at 0" in get(listener.address, "/progress?seconds=0.2")[1])
        assert get(listener.address, "/progress?seconds=600")[0] == 200
        slow.gate.set()
        eventually(lambda: get(listener.address, "/progress?seconds=0.2")[0] == 200)
        assert scrape(listener.address)["harvest_pipeline_writer_stalled_seconds", (name, "slow")] == 0
        running.pipeline.stop()
        running.wait()
        assert get(listener.address, "/livez")[0] == 503


def test_a_writer_that_stands_still_is_known_at_the_first_question(tmp_path, slow, monkeypatch):
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.01)
    running = Running(declared(tmp_path, Script(messages("A"), ends=False), {"slow": slow}))
    telemetry = PipelineTelemetry(running.pipeline)
    eventually(lambda: running.pipeline.log_end == 1)
    with Listener("127.0.0.1:0", telemetry) as listener:
        eventually(lambda: telemetry._watches and telemetry._watches["slow"].stalled_seconds > 0.2, "looked at")
        assert get(listener.address, "/progress?seconds=0.2")[0] == 503
    slow.gate.set()
    running.stop()


class OfASlot(Script):
    """A reader of a slot with a state."""

    state = SlotState(slot="shop", status="unreserved", retained_bytes=900, safe_bytes=None)

    def slot_state(self):
        return self.state


def test_the_state_of_a_slot_is_reported_as_far_as_it_is_known(tmp_path):
    reader = OfASlot(messages("A"), ends=False)
    running = Running(declared(tmp_path, reader, {"one": Taking()}))
    telemetry = PipelineTelemetry(running.pipeline)

    def found():
        return {metric: values for metric, values in telemetry.readings() if metric in catalogue.OF_SLOTS}

    eventually(found)
    assert found() == {
        catalogue.PIPELINE_SLOT_STATUS: {
            ("test", "shop", each): float(each == "unreserved")
            for each in ("reserved", "extended", "unreserved", "lost")
        },
        catalogue.PIPELINE_SLOT_RETAINED: {("test", "shop"): 900},
        catalogue.PIPELINE_SLOT_SAFE: {},
    }
    reader.state = None
    assert found() == {}, "it is not known any more"
    running.stop()


def test_a_reader_that_inherits_nothing_has_no_slot_and_no_retention(tmp_path):
    class Bare:
        def __init__(self):
            script = Script(messages("A"), ends=False)
            self.read, self.kept, self.close = script.read, script.kept, script.close

    running = Running(declared(tmp_path, Bare(), {"one": Taking()}))
    telemetry = PipelineTelemetry(running.pipeline)
    eventually(lambda: running.pipeline.log_end == 1)
    assert not {metric for metric, values in telemetry.readings() if metric in catalogue.OF_SLOTS and values}
    running.stop()


def test_before_it_runs_it_is_neither_live_nor_ready(tmp_path):
    telemetry = PipelineTelemetry(Pipeline(declared(tmp_path, Script(), {"one": Taking()})))
    assert not telemetry.live().is_healthy
    assert not telemetry.ready().is_healthy
    assert telemetry.progress(1.0).is_healthy
    assert [metric.name for metric, _ in telemetry.readings()] == ["harvest_pipeline_running"]


def test_a_writer_that_failed_makes_it_not_ready(tmp_path):
    bad, good = Taking(), Taking()
    bad.refuses = lambda _: True
    settings = {"bad": {"on_error": "stop_writer"}}
    running = Running(
        declared(tmp_path, Script(messages("AB"), ends=False), {"bad": bad, "good": good}, settings=settings)
    )
    telemetry = PipelineTelemetry(running.pipeline)
    eventually(lambda: "'bad' has failed" in telemetry.ready().reason)
    assert telemetry.live().is_healthy
    at_work = dict(telemetry.readings())[catalogue.PIPELINE_WRITER_AT_WORK]
    assert at_work == {("test", "bad"): 0, ("test", "good"): 1}
    running.stop()


def test_the_command_refuses_an_address_before_it_opens_anything(tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"folder: {tmp_path / 'folder'}\n"
        f"reader: {{adaptor: file, path: {tmp_path / 'in.jsonl'}, content: data, namespace: flights}}\n"
        f"writers:\n  plain: {{adaptor: file, path: {tmp_path / 'plain.jsonl'}}}\n"
    )
    command = [sys.executable, "-m", "harvest_lib.cli", "pipeline", "run", "-f", str(file), "--listen", "nowhere"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 3
    assert "write HOST:PORT" in ended.stderr
    assert not (tmp_path / "folder").exists()
