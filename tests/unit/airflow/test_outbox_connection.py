"""Airflow connections become a harvester's configuration, and a wrong one is named with the field and no secret."""

import json
from types import SimpleNamespace

import pytest
from psycopg.conninfo import conninfo_to_dict

from harvest_lib.airflow.awaited import AwaitedDelivery
from harvest_lib.airflow.outbox_connection import EXTRA, config_of
from harvest_lib.airflow.provider import get_provider_info
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick

CANARY = "canary-77aa"
PLACE = {"host": "db", "port": 5433, "schema": "shop", "login": "app", "password": CANARY}


def connection(name="shop", *, extra=None, **parts):
    empty = dict.fromkeys(PLACE)
    return SimpleNamespace(
        conn_id=name, extra=extra if isinstance(extra, str) else json.dumps(extra or {}), **{**empty, **parts}
    )


def refused(outbox, **others):
    with pytest.raises(ConfigError) as raised:
        config_of(outbox, **others)
    assert CANARY not in str(raised.value)
    return str(raised.value)


def conninfo(config):
    return conninfo_to_dict(config.data_source.conninfo())


def test_its_fields_are_those_of_the_configuration():
    extra = {"outbox_table": "app.outbox", "subscription": "billing", "leader_group_id": "pool", "sslmode": "require"}
    config = config_of(
        connection(**PLACE, extra={**extra, "bootstrap_servers": "k:1", "settings": '{"delivery": "sequenced"}'})
    )
    found = conninfo(config)
    assert [found[name] for name in ("host", "port", "dbname", "user", "password", "sslmode")] == [
        *("db", "5433", "shop", "app", CANARY, "require")
    ]
    assert (config.outbox_table, config.subscription, config.leader_group_id) == ("app.outbox", "billing", "pool")
    assert (config.base_kafka_config["bootstrap.servers"], config.delivery) == ("k:1", "sequenced")


def test_it_names_connections_to_postgres_and_kafka():
    extra = {"postgres_conn_id": "db", "kafka_conn_id": "brokers"}
    postgres = connection("db", **PLACE, extra={"sslmode": "verify-full", "cursor": "dictcursor", "iam": False})
    kafka = {"bootstrap.servers": "k:1", "group.id": "g", "auto.offset.reset": "earliest", "sasl.password": CANARY}
    config = config_of(connection(extra=extra), postgres=postgres, kafka=connection("brokers", extra=kafka))
    assert (conninfo(config)["host"], conninfo(config)["sslmode"]) == ("db", "verify-full")
    assert dict(config.base_kafka_config) == {"bootstrap.servers": "k:1", "sasl.password": CANARY}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "has no host"),
        ({**PLACE, "extra": {"tabel": CANARY}}, "has the extra fields tabel"),
        ({**PLACE, "extra": CANARY}, "has no JSON object as extra"),
        ({**PLACE, "extra": {"settings": CANARY}}, "has no JSON object as `settings`"),
        ({**PLACE, "extra": {"settings": {"deliver": "barrier"}}}, "delivery"),
        ({**PLACE, "extra": {"sslmode": "on"}}, "choose one of disable, allow"),
        ({**PLACE, "extra": {"subscription": "a b"}}, "subscription"),
    ],
)
def test_what_is_wrong_with_it_is_named(parts, said):
    assert said in refused(connection(**parts))
    assert "connection shop" in refused(connection(**parts))


def test_two_ways_to_say_one_thing_are_refused():
    assert "both a host or login" in refused(connection(**PLACE), postgres=connection("db", **PLACE))
    kafka = connection("brokers", extra={"bootstrap.servers": "k:1"})
    both = connection(**PLACE, extra={"bootstrap_servers": "k:2"})
    assert "both bootstrap_servers and kafka_conn_id" in refused(both, kafka=kafka)
    without = connection("brokers", extra={"group.id": "g"})
    assert "connection brokers has no bootstrap.servers" in refused(connection(**PLACE), kafka=without)


def test_the_form_has_a_field_for_all_that_extra_takes():
    (kind,) = [each for each in get_provider_info()["connection-types"] if each["connection-type"] == "outbox"]
    assert set(kind["conn-fields"]) == set(EXTRA)


def test_a_member_of_a_pool_has_to_name_it(monkeypatch):
    monkeypatch.delenv("HARVEST_LEADER_GROUP_ID", raising=False)
    assert config_of(connection(**PLACE)).leadership == "solo"
    assert "leader_group_id" in refused(connection(**PLACE), elects=True)


def test_a_time_that_is_none_is_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="'tomorrow' is no time"):
        AwaitedDelivery(until="tomorrow")
