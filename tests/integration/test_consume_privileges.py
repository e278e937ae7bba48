"""What docs/consuming.md says that a consumer needs is enough, with TLS and users that may do nothing else."""

import re
import runpy
from functools import partial
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from support.consuming import Counting, Running, read_keys
from support.waiting import eventually

from harvest_lib.acls import Acl
from harvest_lib.consume import Consumer, KeyValueStore, PostgresStore, create_key_values, create_tables
from harvest_lib.errors import KafkaAccessDenied

DOCS = Path(__file__).parents[2] / "docs"
USER = "harvester"


class Folding:
    """Remembers keys as values, and forgets one."""

    def consume_message(self, transaction, message):
        transaction.state.put(message.record.key().decode(), 1)
        transaction.state.put("a", None)

    def finalize_txn(self, transaction):
        pass


@pytest.fixture
def granted(secured):
    """A topic to consume, one to publish to, tables, and what the page says."""
    secured.make_topic()
    secured.make_topic(f"{secured.name}.derived", partitions=1)
    create_tables(secured.owner_dsn)
    create_key_values(secured.owner_dsn)
    secured.owner.execute("CREATE TABLE counts (key text PRIMARY KEY, n bigint NOT NULL)")
    secured.owner.execute(f"GRANT SELECT, INSERT, UPDATE ON counts TO {USER}")
    page = (DOCS / "consuming.md").read_text(encoding="utf-8")
    (grants,) = re.findall(r"^```sql\n(GRANT .*?)^```", page, re.MULTILINE | re.DOTALL)
    secured.owner.execute(grants.replace("TO consumer;", f"TO {USER};").encode())
    wanted = [
        Acl(principal=f"User:{USER}", resource=resource, name=name, operation=operation)
        for resource, name, operations in (
            ("topic", secured.topic, ["Read", "Describe"]),
            ("group", secured.name, ["Read"]),
            ("topic", f"{secured.name}.derived", ["Write", "Describe"]),
        )
        for operation in operations
    ]
    bindings = runpy.run_path(str(DOCS / "examples" / "apply_acls.py"))["bindings"]([each.as_json() for each in wanted])
    for future in secured.admin.create_acls(bindings).values():
        future.result(10)
    secured._bindings += bindings
    return secured


def consumer(secured, application, store=PostgresStore, name=None):
    return Consumer(
        application,
        name=name or secured.name,
        topics=[secured.topic],
        settings=secured.kafka(USER),
        store=partial(store, secured.dsn(USER)),
    )


def write(secured, keys):
    producer = Producer(secured.stack.kafka.operator_settings)
    for key in keys:
        producer.produce(secured.topic, b"v", key=key)
    assert producer.flush(20) == 0


def test_what_the_page_says_is_enough(granted):
    query = granted.owner.execute
    write(granted, ["a", "bad", "b"])
    running = Running(consumer(granted, Counting(f"{granted.name}.derived", fails=("bad",))).run)
    assert sorted(read_keys(granted.stack.kafka.operator_settings, f"{granted.name}.derived", 2)) == ["a", "b"]
    eventually(lambda: query("SELECT key FROM consumers_parked").fetchall() == [(b"bad",)], 60, "the bad one is parked")
    assert running.end() is None
    assert query("SELECT key, n FROM counts ORDER BY key").fetchall() == [("a", 1), ("b", 1)]
    write(granted, ["c"])
    running = Running(consumer(granted, Folding(), KeyValueStore).run)
    eventually(lambda: query("SELECT key FROM consumers_state").fetchall() == [("c",)], 60, "the value is kept")
    assert running.end() is None


def test_another_group_is_refused(granted):
    with pytest.raises(KafkaAccessDenied):
        running = Running(consumer(granted, Counting(), name=f"{granted.name}.other").run)
        eventually(lambda: running.error is not None, 60, "it is told")
        raise running.end()


def test_another_role_is_refused(granted):
    with granted.connect("writer") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("UPDATE consumers SET fence = fence + 1")
