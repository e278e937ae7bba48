"""Pipelines declared in YAML: their parts, and the errors of a wrong one, each with its line."""

import re
from pathlib import Path

import pytest

from harvest_lib.errors import ConfigError
from harvest_lib.pipeline import adaptors
from harvest_lib.pipeline.declaration import load
from harvest_lib.pipeline.diagram import drawn, explained

pytestmark = pytest.mark.quick

WHOLE = r"""
name: flights
folder: flights.pipeline
commit_log:
  segment_size: 256MB
  sync: 500ms
  compact_every: 0s
flush_offsets: 2s
shutdown: 1m
max_behind_messages: 500
reader:
  adaptor: both
  dsn: ${FLIGHTS_DSN}
writers:
  lake:
    adaptor: both
    dsn: secret-of-lake
    namespace: ^public\.flights$
    transforms:
      - omit: [tailnum]
      - call: json:loads
        with: {strict: false}
      - route: {find: public\.(.*), to: lake.\1}
    on_error: stop_writer
    on_transform_error: park
    batch_messages: 5000
  events:
    adaptor: both
    dsn: other
    transforms:
      - cloud_events: {source: /flights}
"""


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    places = {"both": ["support.known_adaptors:BOTH"], "reads": ["support.known_adaptors:READS"]}
    monkeypatch.setattr(adaptors, "_places", lambda: places)
    monkeypatch.setattr(adaptors, "OURS", places)
    monkeypatch.setenv("FLIGHTS_DSN", "secret-of-reader")


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        file = tmp_path / "flights.yaml"
        file.write_text(text)
        return load(file)

    return write_and_read


def test_a_declaration_is_read(read, tmp_path):
    declared = read(WHOLE)
    settings = declared.settings
    assert (declared.name, declared.folder) == ("flights", tmp_path / "flights.pipeline")
    assert (settings.commit_log.segment_bytes, settings.commit_log.sync_seconds) == (256_000_000, 0.5)
    assert (settings.commit_log.compact_seconds, settings.flush_seconds, settings.shutdown_seconds) == (0, 2, 60)
    assert settings.max_behind_messages == 500
    assert declared.reader.open.args[0].dsn.get_secret_value() == "secret-of-reader"
    lake, events = declared.writers
    assert (lake.name, lake.adaptor, str(lake.settings.namespace)) == ("lake", "both", r"^public\.flights$")
    assert [name for name, _ in lake.transforms] == ["omit tailnum", "json:loads", r"route to lake.\1"]
    assert (lake.settings.on_error, lake.settings.on_transform_error) == ("stop_writer", "park")
    assert (lake.settings.batch_messages, events.settings.batch_messages) == (5000, 1000)
    assert (events.settings.on_error, str(events.settings.namespace)) == ("stop", ".*")


def test_what_is_not_said_has_a_default(read):
    settings = read(
        "folder: /var/lib/x\nreader: {adaptor: both, dsn: a}\nwriters: {b: {adaptor: both, dsn: c}}"
    ).settings
    assert (settings.name, settings.folder) == ("flights", Path("/var/lib/x"))
    assert (settings.commit_log.segment_bytes, settings.commit_log.sync_seconds) == (1 << 30, 1)
    assert (settings.flush_seconds, settings.shutdown_seconds) == (1, 30)


def test_it_is_drawn_and_explained_without_secrets(read):
    declared = read(WHOLE)
    assert drawn(declared).split("\n") == [
        r"both ─► commit log ─┬─► /^public\.flights$/ ─► omit tailnum ─► json:loads ─► route to lake.\1 ─► both (lake)",
        r"                    └─► everything ─► cloud_events ─► both (events)",
    ]
    text = "\n".join(explained(declared))
    assert "lake: up to 5,000 messages a write; a failed bulk stops this writer alone" in text
    assert "secret" not in text + repr(declared)


def test_one_writer_is_drawn_in_one_line(read):
    declared = read("folder: x\nreader: {adaptor: both, dsn: a}\nwriters: {b: {adaptor: both, dsn: c}}")
    assert drawn(declared) == "both ─► commit log ───► everything ─► both (b)"


LINES = WHOLE.split("\n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("segment_size: 256MB", "  segment_size: 256", "at least 4096"),
        ("segment_size: 256MB", "  segment_size: 256 apples", "`commit_log.segment_size` is not a size"),
        ("sync: 500ms", "  sync: 500", "`commit_log.sync` is not a duration"),
        ("sync: 500ms", "  sync: -1s", "between 0s and 24h"),
        ("shutdown: 1m", "shutdwon: 1m", "did you mean `shutdown`"),
        ("max_behind_messages: 500", "max_behind_messages: 0", "at least 1"),
        ("max_behind_messages: 500", "max_behind_messages: many", "whole number"),
        ("name: flights", "name: ../x", "`name` is not a name"),
        ("  lake:", "  la ke:", "`writers.la ke` is not a name"),
        ("    adaptor: both", "    adaptor: botch", "there is no adaptor 'botch'"),
        ("    adaptor: both", "    adaptor: reads", "does not write"),
        ("    dsn: secret-of-lake", "    nsd: secret-of-lake", "`writers.lake.dsn`"),
        ("    dsn: secret-of-lake", "    dsn: [secret-of-lake]", "must be text"),
        ("    batch_messages: 5000", "    batch_rows: 0", "`writers.lake.batch_rows` is out of range"),
        ("    batch_messages: 5000", "    batch_mesages: 7", "did you mean `batch_messages`"),
        ("    namespace", "    namespace: '('", "is not a regular expression of Go's `regexp`: missing )"),
        ("    namespace", "    namespace: '^(?!lake)'", "`writers.lake.namespace` is not a regular expression of Go"),
        ("    on_error: stop_writer", "    on_error: panic", "'stop' or 'stop_writer'"),
        ("      - omit", "      - omitt: [tailnum]", "`writers.lake.transforms[1]` `omitt` is no transform"),
        ("      - call: json:loads", "      - call: json:dozes", "has no `dozes`"),
        ("      - route", "      - route: {find: x, to: \\1}", "group"),
        ("flush_offsets: 2s", "name: again", "is given twice"),
        ("  dsn: ${FLIGHTS_DSN}", "  dsn: ${NO_SUCH_THING}", "needs NO_SUCH_THING, which is not set"),
        ("folder: flights.pipeline", "", "`folder`"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_no_value(read, old, new, message):
    number = next(number for number, line in enumerate(LINES, start=1) if old in line)
    with pytest.raises(ConfigError) as refused:
        read("\n".join([*LINES[: number - 1], new, *LINES[number:]]))
    reported = str(refused.value)
    assert message in reported
    if new and "nsd" not in new:
        assert re.search(rf"line {number}\b", reported), reported
    assert "secret" not in reported


def test_everything_wrong_is_told_at_once_in_order(read):
    with pytest.raises(ConfigError) as refused:
        read("folder: x\nshutdown: 3\nreader:\n  adaptor: nothing\nwriters:\n  a: {adaptor: both}\n  b:\n")
    reported = str(refused.value)
    assert "4 settings are wrong" in reported
    assert [int(each) for each in re.findall(r"line ([0-9]+): `", reported)] == [2, 4, 6, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("- a", "is not a mapping"),
        ("a: [", "not YAML"),
        ("folder: x", "`reader` is missing"),
        ("folder: x\nreader: {adaptor: both, dsn: a}\nwriters: {}", "is empty"),
        ("folder: x\nreader: 5\nwriters: [a]", "`reader` is not a mapping"),
        ("folder: x\nreader: {dsn: a}\nwriters: {b: {adaptor: both, dsn: c}}", "choose one of both, reads"),
        ("folder: &f [*f]", "contains itself"),
        ("1: x\nfolder: x", "key that is not text"),
    ],
)
def test_a_file_that_is_none_is_refused(read, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(text)


@pytest.fixture
def from_kafka(read, monkeypatch):
    """Read a pipeline from Kafka with these settings of its client; the adaptors are real."""

    def read_with(*settings, topics="[flights]"):
        more = "".join(f"    {each}\n" for each in settings)
        return read(
            "folder: flights.pipeline\n"
            f"reader:\n  adaptor: kafka\n  topics: {topics}\n  kafka:\n    bootstrap.servers: 127.0.0.1:1\n"
            f"{more}writers:\n  lake: {{adaptor: file, path: lake.jsonl}}\n"
        )

    monkeypatch.undo()
    return read_with


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("bogus.key: 1", 'No such configuration property: "bogus.key"'),
        ("fetch.min.bytes: abc", 'Invalid value for configuration property "fetch.min.bytes"'),
        ("group.id: mine", "a pipeline reads without a group"),
        ("enable.auto.commit: true", "a pipeline's offsets to its log"),
        ("auto.offset.reset: earliest", "`start` of its reader"),
    ],
)
def test_settings_that_the_client_never_takes_are_found_without_a_broker(from_kafka, setting, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        from_kafka(setting)


@pytest.mark.parametrize("topics", ["secret", "3", "{secret: 1}"])
def test_one_topic_that_is_no_list_is_answered_in_plain_words(from_kafka, topics):
    with pytest.raises(ConfigError) as refused:
        from_kafka(topics=topics)
    assert (refused.value.cause, refused.value.line) == ("`reader.topics` must be a list", 4)
    assert refused.value.next_step == "write it in brackets, with commas: `topics: [one, another]`"
    assert "secret" not in str(refused.value)


def test_a_writer_with_one_transform_that_is_no_list_is_answered_in_plain_words(read):
    with pytest.raises(ConfigError, match=r"`writers\.b\.transforms` must be a list") as refused:
        read("folder: x\nreader: {adaptor: both, dsn: a}\nwriters: {b: {adaptor: both, dsn: c, transforms: omit}}")
    assert "`transforms: [one, another]`" in refused.value.next_step


def test_a_setting_that_only_this_machine_cannot_have_is_no_wrong_one(from_kafka):
    assert from_kafka("security.protocol: ssl", "ssl.ca.location: /of/another/machine.pem").reader is not None


@pytest.mark.parametrize(("largest", "ahead"), [(1, 10_000), (1_000, 10_000), (5_000, 50_000)])
def test_the_reader_may_be_some_of_the_largest_batches_ahead(read, largest, ahead):
    text = WHOLE.replace("max_behind_messages: 500\n", "")
    assert read(text.replace("batch_messages: 5000", f"batch_messages: {largest}")).max_behind_messages == ahead
    assert read(WHOLE).max_behind_messages == 500
