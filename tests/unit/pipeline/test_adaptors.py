"""Adaptors by name: what there is, what others add, what is refused, and options that check themselves."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import ValidationError

from harvest_lib.errors import AdaptorError, ConfigError
from harvest_lib.pipeline import adaptors
from harvest_lib.pipeline.adaptors import OURS, Options, find, names, reading, writing

pytestmark = pytest.mark.quick

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"

THEIRS = """
from harvest_lib.pipeline.adaptors import Adaptor, Side
from harvest_lib.pipeline.adaptors.stdout import StdoutWriter, StdoutWriting

ADAPTOR = Adaptor(summary="theirs", writes=Side(options=StdoutWriting, make=StdoutWriter))
"""

POSTGRES = {"data_source": "host=h password=hunter2", "slot": "s"}
KAFKA = {"kafka": {"bootstrap.servers": "b:9092", "sasl.password": "hunter2"}}


def declare(monkeypatch, *declared):
    entries = [EntryPoint(name, value, adaptors.GROUP) for name, value in declared]
    monkeypatch.setattr(adaptors, "entry_points", lambda group: entries if group == adaptors.GROUP else [])


def test_ours_are_declared_as_entry_points():
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][adaptors.GROUP]
    assert declared == OURS


def test_each_of_ours_says_what_it_is_and_has_the_sides_it_should():
    found = {name: find(name) for name in OURS}
    assert all(adaptor.summary for adaptor in found.values())
    assert {name for name, adaptor in found.items() if adaptor.reads} == {"outbox", "postgres", "kafka", "file"}
    assert {name for name, adaptor in found.items() if adaptor.writes} == {"postgres", "kafka", "file", "stdout"}


def test_others_add_theirs(monkeypatch, tmp_path):
    (tmp_path / "acme_pipelines.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    declare(
        monkeypatch, ("theirs", "acme_pipelines:ADAPTOR"), ("file", OURS["file"]), ("broken", "acme.nowhere:ADAPTOR")
    )
    assert names() == ["broken", "file", "kafka", "outbox", "postgres", "stdout", "theirs"]
    side = writing("theirs")
    side.make(side.options()).write([])
    with pytest.raises(ConfigError, match="does not read"):
        reading("theirs")


def test_an_unknown_one_is_told_with_what_there_is():
    with pytest.raises(ConfigError, match=r"(?s)no adaptor 'mongo'.*file, kafka, outbox, postgres, stdout") as refused:
        find("mongo")
    assert refused.value.field == "adaptor"


def test_two_of_one_name_are_refused(monkeypatch):
    declare(monkeypatch, ("kafka", "acme.kafka:ADAPTOR"))
    with pytest.raises(AdaptorError, match="more than once") as refused:
        find("kafka")
    assert "acme.kafka:ADAPTOR" in refused.value.evidence


@pytest.mark.parametrize(
    ("value", "says"), [("acme.nowhere:ADAPTOR", "cannot be loaded"), ("json:dumps", "is none"), ("json:x", "loaded")]
)
def test_one_that_is_broken_is_named(monkeypatch, value, says):
    declare(monkeypatch, ("theirs", value))
    with pytest.raises(AdaptorError, match=says):
        find("theirs")


@pytest.mark.parametrize(
    ("side", "name", "others"),
    [(reading, "stdout", "file, kafka, outbox, postgres"), (writing, "outbox", "file, kafka, postgres, stdout")],
)
def test_the_side_that_is_not_there_is_told_with_those_that_have_it(side, name, others):
    with pytest.raises(ConfigError, match=f"(?s){name}' does not .*{others}"):
        side(name)


@pytest.mark.parametrize(
    ("side", "name", "options", "says"),
    [
        (reading, "postgres", {"slot": "s"}, "data_source"),
        (reading, "postgres", {**POSTGRES, "slot": "No-Slot"}, "slot"),
        (reading, "postgres", {**POSTGRES, "tabels": []}, "tabels"),
        (reading, "postgres", {**POSTGRES, "batch_rows": 0}, "batch_rows"),
        (writing, "kafka", {}, "kafka"),
        (writing, "kafka", {"kafka": {}}, "bootstrap.servers"),
        (writing, "kafka", {"kafka": {**KAFKA["kafka"], "enable.idempotence": "false"}}, "enable.idempotence"),
        (writing, "kafka", {**KAFKA, "content": "data"}, "needs `key`"),
        (writing, "kafka", {**KAFKA, "topic": "no topic"}, "no name that Kafka takes"),
        (writing, "kafka", {**KAFKA, "topic": "__consumer_offsets"}, "internal to Kafka"),
        (writing, "kafka", {**KAFKA, "delivery_timeout": "30"}, "without a unit"),
        (reading, "kafka", {**KAFKA, "topics": []}, "topics"),
        (reading, "outbox", {"data_source": "host=h", "subscription": "a b"}, "subscription"),
        (writing, "file", {"path": "x", "format": "csv"}, "format"),
        (writing, "file", {"path": "x", "format": "parquet", "content": "data"}, "for JSON lines"),
        (writing, "stdout", {"content": "all"}, "content"),
    ],
)
def test_options_check_themselves(side, name, options, says):
    with pytest.raises(ValidationError) as refused:
        side(name).options.model_validate(options)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("side", "name", "options"),
    [
        (reading, "postgres", POSTGRES),
        (writing, "postgres", {"data_source": "host=h password=hunter2"}),
        (writing, "kafka", KAFKA),
        (reading, "kafka", {**KAFKA, "topics": ["t"]}),
        (reading, "outbox", {"data_source": "host=h password=hunter2", "subscription": "s"}),
        (reading, "file", {"path": "/nowhere/x"}),
        (writing, "file", {"path": "/nowhere/x", "format": "parquet"}),
        (writing, "stdout", {}),
    ],
)
def test_making_one_connects_to_nothing_and_shows_no_secret(side, name, options):
    made = side(name).options.model_validate(options)
    assert isinstance(made, Options)
    assert "hunter2" not in repr(made)
    side(name).make(made).close()
