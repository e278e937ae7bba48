"""Promises of the audit by Spark without Spark, Kafka and Postgres."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from harvest_lib.audit.summary import together
from harvest_lib.errors import FOUND_EXIT_CODE, ConfigError, HarvestError, KafkaError
from harvest_lib.spark.audit import MUST_BE_ZERO, AuditSummary, audit
from harvest_lib.spark.audit import __main__ as command
from harvest_lib.spark.audit.kafka_side import java_settings, translated
from harvest_lib.spark.audit.run import _failure

pytestmark = pytest.mark.quick

NUMBERS = [name for name in AuditSummary.__dataclass_fields__ if name not in {"audit_id", "at"}]


def summary(**numbers: float) -> AuditSummary:
    at = datetime(2013, 1, 1, tzinfo=UTC)
    return AuditSummary(audit_id="nightly", at=at, **{**dict.fromkeys(NUMBERS, 0), **numbers})


@pytest.mark.parametrize("name", NUMBERS)
def test_what_makes_a_summary_not_ok(name):
    assert summary(committed=1).ok
    assert summary(**{"committed": 1, name: 1}).ok == (name not in MUST_BE_ZERO)


def test_a_summary_of_nothing_is_not_ok():
    empty = summary(records=9, foreign_messages=9)
    assert empty.is_empty
    assert not empty.ok
    assert not empty.anomalies
    assert "0 records committed, 9 messages" in str(empty.nothing_checked("say so"))


def test_java_is_told_what_librdkafka_is():
    given = {
        "metadata.broker.list": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'o"brien',
        "sasl.password": "back\\slash",
        "ssl.ca.location": "/ca.pem",
        "queue.buffering.max.messages": 5,
    }
    assert java_settings(given) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="o\\"brien" password="back\\\\slash";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
    }
    assert "plain.PlainLoginModule" in java_settings({"sasl.mechanism": "PLAIN"})["kafka.sasl.jaas.config"]


@pytest.mark.parametrize(
    "settings", [{"ssl.key.password": "canary"}, {"sasl.mechanism": "GSSAPI"}, {"sasl.oauthbearer.config": "canary"}]
)
def test_security_that_java_cannot_be_told_of_is_refused(settings):
    with pytest.raises(ConfigError, match="cannot pass") as caught:
        java_settings(settings)
    assert "canary" not in str(caught.value)


def test_failures_of_spark_are_told_by_what_failed():
    kafka = {"bootstrap.servers": "a:1", "sasl.password": "canary"}
    cut = translated(RuntimeError("... OffsetOutOfRangeException: ..."), kafka)
    assert isinstance(cut, KafkaError)
    assert "retention" in cut.next_step
    lost = translated(RuntimeError("x\norg.apache.kafka.common.errors.TimeoutException: gone\ny"), kafka)
    assert isinstance(lost, KafkaError)
    assert "gone" in lost.evidence
    assert "canary" not in str(lost)
    assert translated(RuntimeError("x"), kafka) is None
    refused = _failure(RuntimeError("x\nCaused by: org.postgresql.util.PSQLException: ERROR: disk full\ny"), kafka)
    assert refused.exit_code == 5
    assert "disk full" in refused.evidence
    assert type(_failure(RuntimeError(""), kafka)) is HarvestError


@pytest.fixture
def nowhere(monkeypatch):
    for name in ("HARVEST_DSN", "HARVEST_BOOTSTRAP_SERVERS", "HARVEST_CONFIG", "HARVEST_SPARK_JARS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--unheard-of"], "--unheard-of"),
        ([], "--dsn is missing"),
        (["--dsn", "host=a"], "--bootstrap-servers is missing"),
        (["--dsn", "host=a", "--bootstrap-servers", "a:1"], "no topic"),
        (["--dsn", "host=a", "--bootstrap-servers", "a:1", "--topic", "t", "--audit-id", ""], "audit's id"),
        (["--dsn", "host=a", "--bootstrap-servers", "a:1", "--topic", "t"], "driver"),
        (["-f", "none.yaml", "--topic", "t"], "none.yaml"),
    ],
)
def test_bad_arguments_exit_with_3(nowhere, arguments, says, capsys):
    assert command.main(arguments) == 3
    said = capsys.readouterr().err
    assert says in said
    assert "next step" in said


def test_the_command_takes_its_place_from_yaml_and_options_before_that(nowhere, monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr(command, "audit", lambda **how: asked.append(how) or summary(lost=1234, delay_p99_ms=2.5))
    config = tmp_path / "reaper.yaml"
    config.write_text(
        "harvest:\n  baseKafkaConfig:\n    bootstrap.servers: a:1\n    sasl.password: canary\n"
        "  leaderGroupID: g\n  dataSource: host=b user=c password=canary\n  outboxTable: shop.outbox\n"
        "  source: snapshot\n  subscription: eu\n"
    )
    monkeypatch.setenv("HARVEST_CONFIG", str(config))
    assert command.main(["--topic", "t", "--topic", "u", "--table", "orders", "--id-column", "id"]) == FOUND_EXIT_CODE
    assert "lost                   1,234  <-" in capsys.readouterr().out
    (how,) = asked
    assert (how["topics"], how["outbox"], how["subscription"]) == (["t", "u"], "shop.outbox", "eu")
    assert (how["business"].table, how["business"].id_column) == ("orders", "id")
    assert how["kafka"]["sasl.password"] == "canary"
    assert "password=canary" in how["dsn"]
    arguments = ["--topic", "t", "--dsn", "host=z", "--bootstrap-servers", "z:1", "--outbox", "o", "--json"]
    assert command.main(arguments) == FOUND_EXIT_CODE
    assert (asked[1]["dsn"], asked[1]["kafka"]["bootstrap.servers"], asked[1]["outbox"]) == ("host=z", "z:1", "o")
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["lost"], document["delay_p99_ms"]) == (False, 1234, 2.5)


def test_an_audit_needs_topics_and_an_id(tmp_path):
    with pytest.raises(ConfigError, match="no topic"):
        audit(dsn="", kafka={}, topics=[])
    for audit_id in ("", "x" * 201, "a\0b"):
        with pytest.raises(ConfigError, match="audit's id"):
            audit(dsn="", kafka={}, topics=["t"], audit_id=audit_id)


def test_audits_of_other_topics_together_are_their_sums_as_of_the_oldest():
    late = datetime(2013, 1, 2, tzinfo=UTC)
    one = summary(records=1, lost=2, keys=3, keys_with_gaps=1, delay_p99_ms=5.0, backlog_age_seconds=4.0)
    two = replace(one, audit_id="other", at=late, delay_p99_ms=7.0, backlog_age_seconds=1.0)
    both = together([two, one])
    assert (both.records, both.lost, both.keys, both.keys_with_gaps, both.at) == (2, 4, 6, 2, one.at)
    assert (both.delay_p99_ms, both.backlog_age_seconds) == (7.0, 4.0)
    assert both.audit_id == "2 audits since nightly"
    unknown = together([one, replace(two, keys=None, delay_p99_ms=None)])
    assert (unknown.keys, unknown.delay_p99_ms) == (None, 5.0), "what one does not know, nobody knows; no delay is none"
    assert together([one]) == one


def test_a_file_of_metrics_that_no_collector_reads_is_refused_before_spark_starts(tmp_path, capsys):
    assert command.main(["--topic", "orders", "--metrics-file", str(tmp_path / "audit.txt")]) == 3
    assert "name the file 'audit.prom'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
