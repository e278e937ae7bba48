"""HarvestConfig from Python and from the environment: defaults, spellings, precedence, rules between fields."""

import re
import time
from pathlib import Path

import pytest
import yaml

from harvest_lib.config import ColumnMapping, HarvestConfig, KafkaSettings, Limits, load
from harvest_lib.errors import ConfigError
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.quick

IN_FLIGHT = "max.in.flight.requests.per.connection"
SESSION = "session.timeout.ms"


def config(**values: object) -> HarvestConfig:
    return HarvestConfig(**{"leader_group_id": "g", **values})


def refused(**values: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config(**values)
    return caught.value


def test_the_defaults() -> None:
    made = config()
    assert made.base_kafka_config == {"bootstrap.servers": "localhost:9092"}
    assert made.producer_kafka_config == {}
    assert (made.source, made.delivery, made.leadership) == ("auto", "auto", "auto")
    assert made.leader_topic == "g.neli"
    assert made.outbox_table == "outbox"
    assert made.limits == Limits()
    assert made.create_leader_topic is True
    assert made.record_header is True
    assert made.shards == 1
    assert made.session_timeout_seconds == 10
    assert made.delivery_timeout_seconds == 5


def test_the_default_name_tells_host_process_and_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my host!")
    monkeypatch.setattr("os.getpid", lambda: 42)
    before = int(time.time())
    name = config().name
    assert re.fullmatch(r"my_host__42_\d+", name)
    assert before <= int(name.rpartition("_")[2]) <= time.time()


@pytest.mark.parametrize(
    ("name", "alias", "value"),
    [
        ("base_kafka_config", "baseKafkaConfig", {"bootstrap.servers": "k:1"}),
        ("producer_kafka_config", "producerKafkaConfig", {"linger.ms": 5}),
        ("leadership", "leadership", "solo"),
        ("leader_group_id", "leaderGroupID", "other"),
        ("leader_topic", "leaderTopic", "other"),
        ("outbox_table", "outboxTable", "a.b"),
        ("name", "name", "me"),
        ("create_leader_topic", "createLeaderTopic", False),
        ("record_header", "recordHeader", False),
        ("shards", "shards", 4),
        ("session_timeout_seconds", "sessionTimeout", "20s"),
    ],
)
def test_each_field_has_both_spellings(name: str, alias: str, value: object) -> None:
    given = {} if name == "leader_group_id" else {"leader_group_id": "g"}
    by_name, by_alias = HarvestConfig(**given, **{name: value}), HarvestConfig(**given, **{alias: value})
    assert getattr(by_name, name) == getattr(by_alias, name) == (20 if value == "20s" else value)
    assert getattr(by_name, name) != getattr(config(), name)
    assert alias in by_name.redacted()


def test_limits_in_either_spelling_or_made_already() -> None:
    for limits in ({"sendBuffer": 3}, {"send_buffer": 3}, Limits(send_buffer=3)):
        assert config(limits=limits).limits == Limits(send_buffer=3)


@pytest.mark.parametrize("group", [None, "", "  "])
def test_without_a_leader_group_the_error_says_how_to_name_a_pool(group: str | None) -> None:
    error = refused(leader_group_id=group)
    assert error.field == "leader_group_id"
    assert "goharvest" not in str(error)
    assert "`leaderGroupID: shop`" in error.next_step
    assert "HARVEST_LEADER_GROUP_ID" in error.next_step


@pytest.mark.parametrize("leadership", ["neli", "postgres", "solo"])
def test_shards_go_with_every_way_of_electing(leadership: str) -> None:
    assert config(leadership=leadership, shards=3).shards == 3


def test_solo_needs_no_leader_group() -> None:
    assert HarvestConfig(leadership="solo").leader_topic == ""


def test_a_group_that_makes_no_legal_topic_may_have_another() -> None:
    assert config(leader_group_id="my group", leader_topic="t").leader_topic == "t"


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("outbox", ("outbox",)),
        ("billing.outbox", ("billing", "outbox")),
        ('x"; DROP TABLE y; --', ('x"; DROP TABLE y; --',)),
        ('"my.app".outbox', ("my.app", "outbox")),
        ('"my.""app"."out.box"', ('my."app', "out.box")),
        ('"my.app".out"box', ("my.app", 'out"box')),
        ("Été", ("Été",)),
        ('"a.b".' + "x" * 63, ("a.b", "x" * 63)),
        ("x" * 63, ("x" * 63,)),
    ],
)
def test_a_table_is_one_identifier_or_two(table: str, parts: tuple[str, ...]) -> None:
    assert OutboxTable.parse(config(outbox_table=table).outbox_table).parts == parts


def test_the_session_outlasts_the_heartbeat() -> None:
    assert config(session_timeout_seconds=5.001).session_timeout_seconds == 5.001


def test_kafkas_own_session_timeout_is_ours() -> None:
    made = config(base_kafka_config={"session.timeout.ms": "7000"})
    assert made.session_timeout_seconds == 7
    assert "session.timeout.ms" not in made.kafka_settings(for_producer=False)


@pytest.mark.parametrize("name", ["delivery.timeout.ms", "message.timeout.ms"])
def test_the_delivery_timeout_ends_before_a_successor_is_elected(name: str) -> None:
    def seconds(timeout: object, session: float = 10) -> float:
        made = config(producer_kafka_config={name: timeout}, session_timeout_seconds=session)
        assert name not in made.kafka_settings(for_producer=True)
        return made.delivery_timeout_seconds

    assert seconds(3000) == 3
    assert seconds("8999") == 8.999
    assert seconds(10000) == 9
    assert seconds(0) == 9  # librdkafka's "never"
    assert config(base_kafka_config={name: 2000}, producer_kafka_config={name: 3000}).delivery_timeout_seconds == 3
    short = {"heartbeatTimeout": "500ms"}
    assert config(limits=short, session_timeout_seconds=1.2).delivery_timeout_seconds == 0.5
    assert (
        config(limits=short | {"heartbeatTimeout": "1s"}, session_timeout_seconds=1.2).delivery_timeout_seconds == 0.6
    )


PROMISES = [
    ("group.id", "x"),
    ("enable.auto.commit", True),
    ("enable.auto.commit", False),
    ("auto.offset.reset", "earliest"),
    ("group.protocol", "consumer"),
    ("group.instance.id", "x"),
    ("acks", 1),
    ("acks", "0"),
    ("request.required.acks", 1),
    ("enable.idempotence", False),
    ("enable.idempotence", "false"),
    ("max.in.flight.requests.per.connection", "1000"),
    ("retries", 1),
    ("message.send.max.retries", "3"),
    ("transactional.id", "x"),
    ("enable.gapless.guarantee", True),
    ("delivery.report.only.error", True),
    ("dr_cb", print),
    ("dr_msg_cb", print),
    ("on_delivery", print),
    ("allow.auto.create.topics", True),
]


@pytest.mark.parametrize(("name", "value"), PROMISES)
@pytest.mark.parametrize("mapping", ["base_kafka_config", "producer_kafka_config"])
def test_what_a_promise_rests_on_is_not_overridden(mapping: str, name: str, value: object) -> None:
    error = refused(**{mapping: {name: value}})
    assert error.field == f"{mapping}.{name}"
    assert "must not be changed: " in error.cause
    assert error.next_step


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group.protocol", "classic"),
        ("acks", "all"),
        ("acks", -1),
        ("request.required.acks", "ALL"),
        ("enable.idempotence", True),
        ("max.in.flight.requests.per.connection", "5"),
        ("enable.gapless.guarantee", False),
        ("delivery.report.only.error", False),
        ("allow.auto.create.topics", "false"),
        ("compression.type", "lz4"),
        ("linger.ms", 2.5),
        ("oauth_cb", print),
        ("oauth_cb", "company.kafka_tokens:token"),
        *(("partitioner", each) for each in ("consistent", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random")),
        ("topic.partitioner", "murmur2"),
        ("topic.metadata.refresh.interval.ms", 1_000),
    ],
)
def test_everything_else_passes_through(name: str, value: object) -> None:
    assert config(base_kafka_config={name: value}).kafka_settings(for_producer=False)[name] == value
    assert config(producer_kafka_config={name: value}).kafka_settings(for_producer=True)[name] == value


@pytest.mark.parametrize("name", ["max.in.flight", IN_FLIGHT])
@pytest.mark.parametrize(
    ("source", "delivery"), [("mark", "pipelined"), ("auto", "transactional"), ("snapshot", "barrier")]
)
def test_one_request_at_a_time_where_reports_are_not_looked_at(name: str, source: str, delivery: str) -> None:
    chosen = {"source": source, "delivery": delivery}
    error = refused(producer_kafka_config={name: 2}, **chosen)
    assert error.field == f"producer_kafka_config.{IN_FLIGHT}"
    assert "must be 1" in error.cause
    assert config(producer_kafka_config={name: "1"}, **chosen).producer_kafka_config[IN_FLIGHT] == "1"


def test_of_two_names_for_requests_on_the_wire_one_reaches_the_client() -> None:
    """librdkafka takes the last of two, which would undo what a delivery asks for."""
    made = config(base_kafka_config={IN_FLIGHT: 3}, producer_kafka_config={"max.in.flight": 5})
    assert made.kafka_settings(for_producer=True) == {"bootstrap.servers": "localhost:9092", IN_FLIGHT: 5}


def test_producer_settings_go_over_the_base_ones() -> None:
    made = config(
        base_kafka_config={"linger.ms": 1, "client.id": "a"}, producer_kafka_config={"linger.ms": 2, "batch.size": 3}
    )
    servers = {"bootstrap.servers": "localhost:9092"}
    assert made.kafka_settings(for_producer=False) == servers | {"linger.ms": 1, "client.id": "a"}
    assert made.kafka_settings(for_producer=True) == servers | {"linger.ms": 2, "client.id": "a", "batch.size": 3}


def test_librdkafkas_other_name_for_the_servers_is_understood() -> None:
    made = config(base_kafka_config={"metadata.broker.list": "k:1"})
    assert made.kafka_settings(for_producer=False) == {"bootstrap.servers": "k:1"}


LEADERSHIPS = "'auto', 'neli', 'postgres' or 'solo'"
NO_TEXTS = ["a\0b", "a\ud800b"]
NO_TABLES = ["", " ", ".", "a.", ".b", "a\0", "x" * 64, "é" * 32, "a." + "x" * 64, '"a.b".' + "x" * 64]

REFUSED = [
    # values, field, words
    *(({"shards": each}, "shards", "") for each in (0, -1, 1001, 2.5, True, "many")),
    *(({"leader_topic": each}, "leader_topic", "") for each in ("a b", "a/b", ".", "..", "x" * 250, "é", "a\n")),
    *(
        ({mapping: {name: value}}, f"{mapping}.{name}", words)
        for mapping in ("base_kafka_config", "producer_kafka_config")
        for name, value, words in (
            ("partitioner", "random", "one partition"),
            ("partitioner", " Random ", "one partition"),
            ("partitioner", "consistent_random", "`consistent`"),
            ("topic.partitioner", "random", "one partition"),
            ("topic.acks", 1, "in-sync"),
            ("topic.request.required.acks", "0", "in-sync"),
        )
    ),
    ({"leader_group_id": "my group"}, "leader_topic", "set `leaderTopic`"),
    *(({"leadership": each}, "leadership", LEADERSHIPS) for each in ("neither", 3)),
    *(({"outbox_table": each}, "outbox_table", "") for each in NO_TABLES),
    ({"session_timeout_seconds": 5}, "session_timeout_seconds", "before another is elected"),
    ({"limits": {"heartbeatTimeout": "10s"}}, "session_timeout_seconds", ""),
    ({"base_kafka_config": {SESSION: 5000}}, f"base_kafka_config.{SESSION}", ""),
    ({"base_kafka_config": {SESSION: 7000}, "sessionTimeout": 8}, f"base_kafka_config.{SESSION}", "contradicts"),
    ({"producer_kafka_config": {SESSION: 7000}}, f"producer_kafka_config.{SESSION}", ""),
    *(
        ({mapping: {name: each}}, f"{mapping}.{name}", "milliseconds")
        for each in ("soon", -1, 1.5, True, "1e3")
        for mapping, name in (("producer_kafka_config", "delivery.timeout.ms"), ("base_kafka_config", SESSION))
    ),
    # Of no form that librdkafka could take.
    ({"base_kafka_config": {"go.batch.producer": True}}, "base_kafka_config.go.batch.producer", "not a setting of"),
    ({"base_kafka_config": {"linger.ms": None}}, "base_kafka_config.linger.ms", "has no value"),
    ({"base_kafka_config": {"default.topic.config": {"acks": 1}}}, "base_kafka_config.default.topic.config", "flat"),
    ({"base_kafka_config": {1: 2}}, "base_kafka_config", "name that is not text"),
    ({"base_kafka_config": "linger.ms=1"}, "base_kafka_config", "mapping"),
    ({"base_kafka_config": {"max.in.flight": 6}}, f"base_kafka_config.{IN_FLIGHT}", ""),
    *(
        ({"producer_kafka_config": {name: value}}, f"producer_kafka_config.{name}", "")
        for name, value in (
            ("error_cb", "print"),
            ("oauth_cb", 1),
            ("oauth_cb", "company.kafka_tokens"),
            ("oauth_cb", "company.kafka-tokens:token"),
            ("default.topic.config", "x"),
            ("batch.size", "many"),
            ("batch.size", 0),
            ("linger.ms", 2**63),
        )
    ),
    # Texts that no server could be sent.
    *(({"leader_group_id": each, "leader_topic": "t"}, "leader_group_id", "") for each in NO_TEXTS),
    *(({name: each}, name, "") for each in NO_TEXTS for name in ("name", "outbox_table")),
    *(({"columns": {"kafka_key": each}}, "columns.kafka_key", "") for each in NO_TEXTS),
    *(({"columns": {"kafka_topic": {"value": each}}}, "columns.kafka_topic", "") for each in NO_TEXTS),
    *(({"base_kafka_config": {"client.id": each}}, "base_kafka_config.client.id", "") for each in NO_TEXTS),
    ({"base_kafka_config": {"a\0b": "x"}}, "base_kafka_config.a\0b", "NUL"),
    ({"base_kafka_config": {"a\ud800b": "x"}}, "base_kafka_config.a\ufffd\ufffd\ufffdb", "surrogate"),
    # Names that are wrong.
    ({"outbox_tabel": "x"}, "outbox_tabel", "did you mean `outbox_table`?"),
    ({"markQueryRecords": 3}, "markQueryRecords", "limits.markQueryRecords"),
    ({"limits": {"markQuerryRecords": 3}}, "limits.markQuerryRecords", "did you mean `mark_query_records`?"),
    ({"leaderGroupID": "g"}, "leader_group_id", "two spellings"),
]


@pytest.mark.parametrize(("values", "field", "words"), REFUSED)
def test_what_cannot_be_is_refused_by_name(values: dict[str, object], field: str, words: str) -> None:
    error = refused(**values)
    assert error.field == field
    assert words in str(error)


def test_all_problems_are_told_at_once() -> None:
    error = refused(
        outbox_tabel="x", limits={"bogus": 1, "sendBuffer": -1}, base_kafka_config={"acks": 1}, leadership="both"
    )
    assert error.cause.startswith("5 settings are wrong")
    for field in ("outbox_tabel", "limits.bogus", "limits.send_buffer", "base_kafka_config.acks", "leadership"):
        assert f"`{field}`" in error.cause


def test_none_is_the_default() -> None:
    assert config(leadership=None).leadership == "auto"


# The environment.


def test_variables_set_every_kind_of_field(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "HARVEST_LEADER_GROUP_ID": "g",
        "HARVEST_OUTBOX_TABLE": "a.b",
        "HARVEST_LIMITS__MARK_QUERY_RECORDS": "7",
        "HARVEST_LIMITS__QUEUE_TIMEOUT_SECONDS": "8",
        "HARVEST_LIMITS__MARK_BACKOFF_SECONDS": "9ms",
        "HARVEST_LIMITS": '{"sendBuffer": 3, "markQueryRecords": 4}',
        "HARVEST_BASE_KAFKA_CONFIG": '{"client.id": "me"}',
        "HARVEST_BOOTSTRAP_SERVERS": "k:1",
        "HARVEST_DATA_SOURCE": "host=db",
        "HARVEST_CREATE_LEADER_TOPIC": "false",
        "HARVEST_SESSION_TIMEOUT_SECONDS": "12",
        "HARVEST_LEADER_TOPIC": "",
        "HARVEST_HOME": "/home",
        "HARVEST_SOMETHING_ELSE": "x",
        "NAME": "not ours",
        "LIMITS": "not ours",
    }.items():
        monkeypatch.setenv(name, text)
    made = HarvestConfig()
    assert made.outbox_table == "a.b"
    assert made.limits == Limits(
        mark_query_records=7, queue_timeout_seconds=8, mark_backoff_seconds=0.009, send_buffer=3
    )
    assert made.base_kafka_config == {"client.id": "me", "bootstrap.servers": "k:1"}
    assert "host=db" in made.data_source.conninfo()
    assert "sslmode" not in made.data_source.conninfo()
    assert made.create_leader_topic is False
    assert made.session_timeout_seconds == 12
    assert made.leader_topic == "g.neli"
    assert made.name != "not ours"


def test_the_data_source_has_a_short_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVEST_DSN", "host=db")
    assert "host=db" in config().data_source.conninfo()
    monkeypatch.setenv("HARVEST_DATA_SOURCE", "host=db")
    assert "host=db" in config().data_source.conninfo()
    monkeypatch.setenv("HARVEST_DATA_SOURCE", "host=other")
    assert "differ" in refused().cause


@pytest.mark.parametrize(
    ("variable", "text", "field"),
    [
        ("HARVEST_LIMITS__MARK_QUERY_RECORDS", "0", "limits.mark_query_records"),
        ("HARVEST_LIMITS__QUEUE_TIMEOUT_SECONDS", "soon", "limits.queue_timeout_seconds"),
        ("HARVEST_LIMITS__MARK_QUERY_RECORD", "1", "limits.mark_query_record"),
        ("HARVEST_RECORD_HEADER", "perhaps", "record_header"),
        ("HARVEST_SHARDS", "two", "shards"),
        ("HARVEST_DSN", "host", "data_source"),
        ("HARVEST_BASE_KAFKA_CONFIG", '{"acks": 1}', "base_kafka_config.acks"),
        ("HARVEST_BASE_KAFKA_CONFIG", "acks=1", ""),
        ("HARVEST_PRODUCER_KAFKA_CONFIG", "[1]", ""),
        ("HARVEST_LIMITS", '{"sendBuffer": ' + "9" * 5_000 + "}", ""),  # more digits than Python reads
    ],
)
def test_an_error_names_the_variable(variable: str, text: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    error = refused()
    assert error.source == f"environment variable {variable}"
    assert error.field == field
    assert field or error.cause == f"{variable} is not a JSON object"
    assert error.line is None
    assert len(error.problems) == 1


def test_arguments_go_before_variables_before_files_before_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reaper.yaml"
    file.write_text(
        """
harvest:
  leaderGroupID: file
  leaderTopic: file
  name: file
  baseKafkaConfig: {metadata.broker.list: file, client.id: file, linger.ms: 1}
  limits: {markQueryRecords: 11, sendBuffer: 11, sendConcurrency: 11, receiveDeadline: 6s}
"""
    )
    monkeypatch.setenv("HARVEST_LEADER_TOPIC", "variable")
    monkeypatch.setenv("HARVEST_NAME", "variable")
    monkeypatch.setenv("HARVEST_LIMITS__SEND_BUFFER", "22")
    monkeypatch.setenv("HARVEST_LIMITS__SEND_CONCURRENCY", "22")
    monkeypatch.setenv("HARVEST_LIMITS", '{"heartbeatTimeout": "7s"}')
    monkeypatch.setenv("HARVEST_BOOTSTRAP_SERVERS", "variable")
    monkeypatch.setenv("HARVEST_BASE_KAFKA_CONFIG", '{"client.id": "variable"}')
    made = load(
        file,
        name="argument",
        limits={"sendConcurrency": 33},
        base_kafka_config=KafkaSettings({"client.id": "argument"}),
    ).harvest
    assert (made.leader_group_id, made.leader_topic, made.name) == ("file", "variable", "argument")
    assert made.limits == Limits(
        mark_query_records=11, send_buffer=22, send_concurrency=33, heartbeat_timeout_seconds=7
    )
    assert made.base_kafka_config == {"bootstrap.servers": "variable", "client.id": "argument", "linger.ms": 1}
    alone = config(name="argument", limits={"send_buffer": 44})
    assert (alone.leader_topic, alone.name, alone.limits.send_buffer) == ("variable", "argument", 44)
    assert alone.limits.send_concurrency == 22


def test_columns_are_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVEST_COLUMNS", '{"kafka_key": "variable", "headers": {"trace": "variable"}}')
    assert config(columns={"id": "argument"}).columns == ColumnMapping(id="argument")


def test_it_is_shown_in_goharvests_spelling() -> None:
    shown = config(limits={"heartbeatTimeout": "6s"}).redacted()
    assert shown["leaderGroupID"] == "g"
    assert shown["sessionTimeout"] == "10s"
    limits = shown["limits"]
    assert isinstance(limits, dict)
    assert (limits["heartbeatTimeout"], limits["maxPollInterval"], limits["sendBuffer"]) == ("6s", "3s", 10)


def test_what_is_shown_can_be_loaded(tmp_path: Path) -> None:
    made = config()
    (tmp_path / "shown.yaml").write_text(yaml.safe_dump(made.redacted()))
    assert load(tmp_path / "shown.yaml").harvest.redacted() == made.redacted()


def test_own_topics_are_those_that_the_pool_has() -> None:
    barrier = config(leader_group_id="orders", delivery="barrier")
    theirs = ("orders.checkpoint", "payment.checkpoint", "payment.default.checkpoint")
    assert not any(barrier.is_own_topic(topic) for topic in theirs)
    assert barrier.is_own_topic("orders.default.checkpoint"), "the configured one"
    assert barrier.is_own_topic(barrier.leader_topic)
    solo = config(leader_group_id="orders", leadership="solo")
    assert not solo.is_own_topic(solo.leader_topic)
    assert barrier.is_own_topic("orders.payment.checkpoint"), "another subscription may be transactional"
