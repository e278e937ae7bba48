"""goharvest's files: what they mean here, and what is said about those that are wrong."""

import re
from pathlib import Path

import pytest

from harvest_lib.config import Limits, ReaperFile, load
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

REAPER = """\
# Same fields and values as goharvest's example.
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9092
  producerKafkaConfig:
    delivery.timeout.ms: 10000
    compression.type: lz4
  leaderGroupID: my-app-name
  leaderTopic: my-app-name
  outboxTable: outbox
  dataSource: host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable
  limits:
    heartbeatTimeout: 5s
    minPollInterval: 1s
    minMetricsInterval: 5s
    maxInFlightRecords: 1000
    sendBuffer: 10
    sendConcurrency: 4
logging:
  level: Debug"""

SECURE = """\
harvest:
  leaderGroupID: my-app-name
  leaderTopic: __consumer_offsets
  outboxTable: outbox
  dataSource: host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable
  baseKafkaConfig:
    bootstrap.servers: localhost:9094
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: alice
    sasl.password: alice-secret
    security.protocol: sasl_ssl
    ssl.ca.location: ca-cert.pem
logging:
  level: Debug
"""


class File:
    """A configuration file of a test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "reaper.yaml"

    def load(self, text: str | bytes, **arguments: object) -> ReaperFile:
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(self.path, **arguments)

    def refused(self, text: str | bytes, **arguments: object) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            self.load(text, **arguments)
        assert caught.value.__context__ is None
        assert str(self.path) in str(caught.value)
        return caught.value


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def test_goharvests_example_loads(file: File) -> None:
    loaded = file.load(REAPER)
    made = loaded.harvest
    assert loaded.logging_level == "debug"
    assert made.kafka_settings(for_producer=True) == {
        "bootstrap.servers": "localhost:9092",
        "compression.type": "lz4",
    }
    assert made.delivery_timeout_seconds == 9
    assert (made.leader_topic, made.leader_group_id, made.outbox_table) == ("my-app-name", "my-app-name", "outbox")
    assert made.limits == Limits(
        min_poll_interval_seconds=1,
        heartbeat_timeout_seconds=5,
        max_in_flight_records=1000,
        min_metrics_interval_seconds=5,
        send_concurrency=4,
        send_buffer=10,
    )
    assert "dbname=postgres" in made.data_source.conninfo()
    assert "password=''" in made.data_source.conninfo()


def test_goharvests_secure_example_loads_but_for_its_leader_topic(file: File) -> None:
    """Kafka lets no client write to `__consumer_offsets`: an election through it would never have a leader."""
    error = file.refused(SECURE)
    assert (error.line, error.field) == (3, "leaderTopic")
    assert "internal to Kafka" in str(error)
    assert "remove it" in str(error)
    made = file.load(SECURE.replace("  leaderTopic: __consumer_offsets\n", "")).harvest
    assert made.kafka_settings(for_producer=False) == {
        "bootstrap.servers": "localhost:9094",
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": "ca-cert.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    assert made.leader_topic == "my-app-name.neli"
    assert made.limits == Limits()


@pytest.mark.parametrize(
    "topic", ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"]
)
@pytest.mark.parametrize("field", ["leaderTopic", "checkpointTopic"])
def test_topics_of_kafkas_own_are_refused(file: File, field: str, topic: str) -> None:
    error = file.refused(f"leaderGroupID: g\ndelivery: transactional\n{field}: {topic}\n")
    assert (error.line, error.field) == (3, field)
    assert "internal to Kafka" in str(error)
    assert file.load(f"leaderGroupID: g\n{field}: x{topic}\n").harvest


def test_one_topic_for_heartbeats_and_checkpoints_is_refused(file: File) -> None:
    text = "leaderGroupID: g\nleadership: neli\nleaderTopic: t\ncheckpointTopic: t\ndelivery: "
    assert file.refused(text + "transactional\n").field == "checkpointTopic"
    assert file.load(text + "barrier\n").harvest.leader_topic == "t"


@pytest.mark.parametrize("text", ["leaderTopic", "dataSource", "outboxTable", "name"])
def test_an_empty_text_is_the_default_as_in_goharvest(file: File, text: str) -> None:
    made = file.load(f'leaderGroupID: g\n{text}: ""\n').harvest
    assert made.leader_topic == "g.neli"
    assert made.outbox_table == "outbox"
    assert "password=''" in made.data_source.conninfo()
    assert made.name


def test_the_harvest_part_may_stand_alone(file: File) -> None:
    loaded = file.load("leaderGroupID: g\nlimits: {sendBuffer: 0, pollDuration: 2ms}\nsessionTimeout: 12s\n")
    assert loaded.harvest.limits == Limits(send_buffer=0, poll_duration_seconds=0.002)
    assert loaded.harvest.session_timeout_seconds == 12
    assert loaded.logging_level == "info"


def test_an_empty_value_is_the_default(file: File) -> None:
    text = "harvest:\n  leaderGroupID: g\n  limits:\n  outboxTable:\n  baseKafkaConfig: ~\nlogging:\n"
    made = file.load(text).harvest
    assert made.limits == Limits()
    assert made.outbox_table == "outbox"


def test_goharvests_database_defaults_are_kept(file: File) -> None:
    conninfo = file.load("leaderGroupID: g\ndataSource: user=bob\n").harvest.data_source.conninfo()
    assert "host=localhost port=5432 sslmode=require" in conninfo


def test_scalars_that_yaml_takes_for_something_else_stay_text_where_text_is_meant(file: File) -> None:
    text = "leaderGroupID: 0123\nleaderTopic: on\nbaseKafkaConfig: {sasl.password: 0123, linger.ms: 010, "
    text += "sasl.username: 0123, client.id: 1_000}\n"
    made = file.load(text).harvest
    assert (made.leader_group_id, made.leader_topic) == ("0123", "on")
    assert made.base_kafka_config["sasl.password"] == "0123"
    assert made.base_kafka_config["sasl.username"] == "0123"
    assert made.base_kafka_config["client.id"] == "1_000"
    assert made.base_kafka_config["linger.ms"] == 8  # as in goharvest


def test_anchors_aliases_and_merges_are_understood(file: File) -> None:
    text = """\
harvest:
  leaderGroupID: &name g
  leaderTopic: *name
  baseKafkaConfig: &kafka
    client.id: a
    linger.ms: 1
  producerKafkaConfig:
    <<: *kafka
    linger.ms: 2
"""
    made = file.load(text).harvest
    assert made.leader_topic == "g"
    assert made.producer_kafka_config == {"client.id": "a", "linger.ms": 2}


def test_what_an_alias_repeats_has_the_line_of_the_alias(file: File) -> None:
    error = file.refused("leaderGroupID: g\nbaseKafkaConfig:\n  x: &v [1]\n  y: *v\n")
    assert "line 3: `baseKafkaConfig.x`" in error.cause
    assert "line 4: `baseKafkaConfig.y`" in error.cause


def test_a_byte_order_mark_is_no_character_of_the_first_key(file: File) -> None:
    assert file.load(b"\xef\xbb\xbfleaderGroupID: g\r\n").harvest.leader_group_id == "g"


@pytest.mark.parametrize(
    ("level", "ours"),
    [
        ("Trace", "debug"),
        ("Debug", "debug"),
        ("INFO", "info"),
        ("Warn", "warning"),
        ("error", "error"),
        ("Critical", "critical"),
        ("Off", "critical"),
        ("All", "debug"),
        ('""', "debug"),  # goharvest's own default
    ],
)
def test_levels(file: File, level: str, ours: str) -> None:
    assert file.load(f"harvest: {{leaderGroupID: g}}\nlogging: {{level: {level}}}\n").logging_level == ours


WRONG = [
    # text, line, field, words
    ("", 1, "", "empty"),
    ("# nothing\n", 1, "", "empty"),
    ("---\n...\n", 1, "", "empty"),
    ("- a\n- b\n", 1, "", "not a mapping"),
    ("just text\n", 1, "", "not a mapping"),
    ("leaderGroupID: g\n\tname: x\n", 2, "", "not YAML"),
    ("leaderGroupID: g\nname: [x\n", 3, "", "not YAML"),
    ("leaderGroupID: g\nname: a: b\n", 2, "", "not YAML"),
    ("leaderGroupID: g\nname: 'x\n", 3, "", "not YAML"),
    ("leaderGroupID: g\n---\nleaderGroupID: h\n", 2, "", "not YAML"),
    ("leaderGroupID: g\nname: \x01\n", 2, "", "does not allow"),
    ("leaderGroupID: g\nname: *x\n", 2, "", "have a meaning in YAML"),
    ("leaderGroupID: g\nname: !!python/object:os.system x\n", 2, "name", "put it in quotes"),
    ("leaderGroupID: g\nrecordHeader: !x y\n", 2, "recordHeader", "tag"),
    ("leaderGroupID: g\nrecordHeader: 2020-99-99\n", 2, "recordHeader", "put it in quotes"),
    ("leaderGroupID: g\nouttboxTable: x\n", 2, "outtboxTable", "did you mean `outboxTable`?"),
    ("leaderGroupId: g\n", 1, "leaderGroupId", "did you mean `leaderGroupID`?"),
    ("leader_group_id: g\n", 1, "leader_group_id", "did you mean `leaderGroupID`?"),
    ("leaderGroupID: g\nkafkaProvider: x\n", 2, "kafkaProvider", "is not a setting"),
    ("leaderGroupID: g\nlimits:\n  sendBufer: 1\n", 3, "limits.sendBufer", "did you mean `sendBuffer`?"),
    ("leaderGroupID: g\nlimits:\n  send_buffer: 1\n", 3, "limits.send_buffer", "did you mean `sendBuffer`?"),
    ("leaderGroupID: g\nmarkBackoff: 1s\n", 2, "markBackoff", "move it to `limits.markBackoff`"),
    ("harvest:\n  leaderGroupID: g\nleaderTopic: x\n", 3, "leaderTopic", "move it to `harvest.leaderTopic`"),
    ("harvest:\n  leaderGroupID: g\nloging: {}\n", 3, "loging", "did you mean `logging`?"),
    ("harvest:\n  leaderGroupID: g\nlogging:\n  levle: x\n", 4, "logging.levle", "did you mean `level`?"),
    ("harvest:\n  leaderGroupID: g\nlogging:\n  level: loud\n", 4, "logging.level", "not a level"),
    ("harvest:\n  leaderGroupID: g\nlogging: loud\n", 3, "logging", "not a mapping"),
    ("logging:\nharvest: 3\n", 2, "", "not a mapping"),
    ("leaderGroupID: g\nname: a\nname: b\n", 3, "name", "the first is in line 2"),
    ("leaderGroupID: g\nbaseKafkaConfig:\n  a: 1\n  a: 2\n", 4, "baseKafkaConfig.a", "given twice"),
    ("harvest:\n  leaderGroupID: g\nharvest:\n  leaderGroupID: h\n", 3, "harvest", "given twice"),
    (
        "leaderGroupID: g\nlimits:\n  heartbeatTimeout: 5s\n  receiveDeadline: 6s\n",
        4,
        "limits.heartbeatTimeout",
        "they mean the same",
    ),
    ("leaderGroupID: g\nlimits: 5\n", 2, "limits", "not a mapping"),
    ("leaderGroupID: g\nbaseKafkaConfig: [a]\n", 2, "baseKafkaConfig", "not a mapping"),
    ("leaderGroupID: g\noutboxTable: {a: b}\n", 2, "outboxTable", "must be text"),
    ("leaderGroupID: [g]\n", 1, "leaderGroupID", "must be text"),
    ("leaderGroupID: g\nrecordHeader: perhaps\n", 2, "recordHeader", "true or false"),
    ("leaderGroupID: g\nleadership: both\n", 2, "leadership", "'neli', 'postgres' or 'solo'"),
    ("leaderGroupID: g\nlimits:\n\n  sendBuffer: many\n", 4, "limits.sendBuffer", "whole number"),
    ("leaderGroupID: g\nlimits:\n  sendBuffer: yes\n", 3, "limits.sendBuffer", "whole number"),
    ("leaderGroupID: g\nlimits:\n  sendBuffer: 1.5\n", 3, "limits.sendBuffer", "whole number"),
    ("leaderGroupID: g\nlimits:\n  sendBuffer: -1\n", 3, "limits.sendBuffer", "at least 0"),
    ("leaderGroupID: g\nlimits:\n  pollDuration: 5\n", 3, "limits.pollDuration", "without a unit"),
    ("leaderGroupID: g\nlimits:\n  pollDuration: 0.5\n", 3, "limits.pollDuration", "without a unit"),
    ("leaderGroupID: g\nlimits:\n  pollDuration: '5'\n", 3, "limits.pollDuration", "without a unit"),
    ("leaderGroupID: g\nlimits:\n  pollDuration: 5 s\n", 3, "limits.pollDuration", "not a duration"),
    ("leaderGroupID: g\nlimits:\n  pollDuration: [5s]\n", 3, "limits.pollDuration", "not a duration"),
    ("leaderGroupID: g\nlimits:\n  pollDuration: 0\n", 3, "limits.pollDuration", "at least 1ms"),
    ("leaderGroupID: g\nlimits:\n  minPollInterval: 4s\n", 2, "limits.maxPollInterval", "less than"),
    ("leaderGroupID: g\nsessionTimeout: 11\n", 2, "sessionTimeout", "without a unit"),
    ("leaderGroupID: g\nsessionTimeout: 4s\n", 2, "sessionTimeout", "more than"),
    (
        "leaderGroupID: g\nbaseKafkaConfig:\n  x: 1\n  session.timeout.ms: 4000\n",
        4,
        "baseKafkaConfig.session.timeout.ms",
        "more than",
    ),
    ("leaderGroupID: g\nbaseKafkaConfig:\n  x: 1\n  group.id: y\n", 4, "baseKafkaConfig.group.id", "leaderGroupID"),
    ("leaderGroupID: g\nproducerKafkaConfig:\n  acks: 1\n", 3, "producerKafkaConfig.acks", "in-sync"),
    ("leaderGroupID: g\nbaseKafkaConfig:\n  x:\n", 3, "baseKafkaConfig.x", "no value"),
    ("leaderGroupID: g\nbaseKafkaConfig:\n  x: {y: z}\n", 3, "baseKafkaConfig.x", "flat"),
    ("leaderGroupID: g\nbaseKafkaConfig:\n  1: y\n", 3, "baseKafkaConfig", "key that is not text"),
    ("leaderGroupID: g\nbaseKafkaConfig:\n  <<: 1\n", 2, "baseKafkaConfig", "cannot be merged"),
    ("leaderGroupID: g\ndataSource: host=a pass word=x\n", 2, "dataSource", "without `=`"),
    ("leaderGroupID: g\noutboxTable: a.\n", 2, "outboxTable", "empty name"),
    ("outboxTable: a\n", 1, "leaderGroupID", "is missing"),
    ("# x\nharvest:\n  outboxTable: a\n", 2, "leaderGroupID", "is missing"),
    ("logging: {level: Info}\n", 1, "leaderGroupID", "is missing"),
    ("leaderGroupID:\n", 1, "leaderGroupID", "is missing"),
]


@pytest.mark.parametrize(("text", "line", "field", "words"), WRONG)
def test_an_error_names_file_line_and_field(file: File, text: str, line: int, field: str, words: str) -> None:
    error = file.refused(text)
    assert words in str(error)
    assert error.source == str(file.path)
    assert (error.line, error.field) == (line, field)
    assert f"line {line}" in str(error)


@pytest.mark.parametrize("form", ["!!bool maybe", "!!int ''", "!!timestamp x", "!!binary ü", "9" * 5_000])
@pytest.mark.parametrize("setting", ["recordHeader", "limits: {sendBuffer", "columns: {id"])
def test_a_scalar_of_which_yaml_makes_nothing_is_refused_by_name(file: File, form: str, setting: str) -> None:
    error = file.refused(f"leaderGroupID: g\n{setting}: {form}{'}' if '{' in setting else ''}\n")
    assert (error.line, error.field) == (2, setting.replace(": {", "."))


def test_all_problems_of_a_file_are_told_together_in_order(file: File) -> None:
    error = file.refused("""\
harvest:
  leaderGroupID: g
  leaderGroupID: h
  dataSource: host
  outboxTabel: x
  baseKafkaConfig:
    acks: 1
  limits:
    pollDuration: 5
    sendBuffer: -1
    bogus: 1
logging:
  level: loud
""")
    assert error.cause.startswith("8 settings are wrong")
    assert [int(line) for line in re.findall(r"line (\d+):", error.cause)] == [3, 4, 5, 7, 9, 10, 11, 13]
    assert (error.line, error.field) == (3, "leaderGroupID")


def test_a_problem_that_an_argument_or_a_variable_brings_is_not_put_on_the_file(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = "leaderGroupID: g\nlimits: {sendBuffer: 1}\n"
    with pytest.raises(ConfigError) as caught:
        file.load(good, limits={"sendBuffer": -1})
    assert (caught.value.source, caught.value.line, caught.value.field) == ("", None, "limits.send_buffer")
    monkeypatch.setenv("HARVEST_LIMITS__SEND_BUFFER", "-1")
    with pytest.raises(ConfigError) as caught:
        file.load(good)
    assert caught.value.source == "environment variable HARVEST_LIMITS__SEND_BUFFER"


def test_with_file_first_the_file_goes_before_the_environment(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVEST_LEADER_TOPIC", "variable")
    monkeypatch.setenv("HARVEST_LIMITS", '{"sendBuffer": 2, "sendConcurrency": 2}')
    text = "leaderGroupID: g\nleaderTopic: file\nlimits: {sendBuffer: 1}\n"
    made = file.load(text, file_first=True).harvest
    assert (made.leader_topic, made.limits) == ("file", Limits(send_buffer=1, send_concurrency=2))
    assert file.load(text).harvest.leader_topic == "variable"
    assert file.refused(text.replace("1}", "-1}"), file_first=True).line == 3


def test_a_variable_cures_what_the_file_lacks(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVEST_LEADER_GROUP_ID", "g")
    assert file.load("outboxTable: x\n").harvest.leader_group_id == "g"


def test_a_file_nested_without_end_is_refused(file: File) -> None:
    assert "nested" in file.refused("leaderGroupID: " + "[" * 50_000).cause


def test_a_file_that_refers_to_itself_without_end_is_refused(file: File) -> None:
    assert "flat" in str(file.refused("leaderGroupID: g\nbaseKafkaConfig: &a\n  x: *a\n"))


@pytest.mark.parametrize(
    ("name", "words"), [("missing.yaml", r"does not exist[\s\S]*missing\.yaml"), ("", "is a folder")]
)
def test_a_file_that_is_none(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / name)


def test_a_file_that_is_not_text(file: File) -> None:
    assert "not UTF-8 at byte 16" in file.refused(b"leaderGroupID: \xff\xfe\n").cause


def test_a_file_that_may_not_be_read(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(ConfigError, match="Permission denied"):
        load(file.path)
