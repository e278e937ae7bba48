"""Delivery to brokers that take tokens (SASL/OAUTHBEARER), from a function that the configuration names."""

import sys

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.outbox import harvest_config, read_topic

from harvest_lib.errors import KafkaUnavailable
from harvest_lib.harvester import preflight
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.local_stack.kafka import KafkaCluster

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

BROKER = """
sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
listener.name.sasl.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
"""
TOKENS = """
import base64, json, time

calls = []

def _part(content):
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

def token(config):
    now = time.time()
    calls.append(now)
    claims = {"sub": "harvester", "iat": now, "exp": now + 300}
    return f"{_part({'alg': 'none'})}.{_part(claims)}.", claims["exp"]

def refused(config):
    raise OSError("canary: no token from the company's server")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, parts):
    made = KafkaCluster(tmp_path_factory.mktemp("oauth"), parts=parts, optimized=False)
    made.prepare()
    with made._properties(1).open("a") as file:
        file.write(BROKER)
    made.spawn()
    made.await_ready()
    yield made
    made.stop()


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    (tmp_path / "tokens_of_test.py").write_text(TOKENS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("tokens_of_test", None)


def settings(cluster, function):
    return {
        "bootstrap.servers": cluster.sasl_bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": f"tokens_of_test:{function}",
    }


def configured(cluster, outbox, group, function, **more):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(outbox.topic, 2)])[outbox.topic].result(60)
    kafka = settings(cluster, function)
    return harvest_config(
        outbox.dsn, kafka["bootstrap.servers"], group, leadership="neli", base_kafka_config=kafka, **more
    )


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("delivery", ["barrier", "transactional"])
def test_all_clients_of_a_harvester_take_their_tokens_from_the_named_function(cluster, outbox, group_id, delivery):
    config = configured(cluster, outbox, group_id, "token", delivery=delivery)
    outbox.fill(50)
    assert preflight.inspect(config).errors == []
    assert Harvest(config).drain(60).records == 50
    assert len(read_topic(cluster.bootstrap_servers, outbox.topic, isolation="read_committed")) == 50
    assert len(sys.modules["tokens_of_test"].calls) > 1


@pytest.mark.usefixtures("tokens")
def test_a_function_that_fails_is_told_and_nothing_is_lost(cluster, outbox, group_id, caplog):
    config = configured(cluster, outbox, group_id, "refused")
    outbox.fill(50)
    with pytest.raises(KafkaUnavailable, match="got no token"):
        Harvest(config).drain(60)
    (told, *_) = [each for each in caplog.records if each.getMessage() == "kafka_token_failed"]
    assert told.reason == "OSError: canary: no token from the company's server"
    assert outbox.count() == 50
