"""A table of another layout, the one of the article on polling by transaction id: read through `columns`, and in plain
SQL; a layout that would lose records is refused with the DDL that fixes it."""

import json
import logging
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from support.outbox import harvest_config, read_topic
from support.waiting import eventually
from typer.testing import CliRunner

from dagster_harvest.daemon import _Daemon
from dagster_harvest.settings import OutboxSettings
from harvest_lib.cli import app
from harvest_lib.config import ColumnMapping, HarvestConfig, load
from harvest_lib.errors import ConfigError, OutboxTableError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import NativeTable, OutboxTable, append, check_column_mapping, subscribers_sql
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.gate

ARTICLE = """
CREATE TABLE outbox (
  position       BIGSERIAL PRIMARY KEY,
  publication_id VARCHAR(250) NOT NULL,
  message_id     VARCHAR(250) NOT NULL,
  message_type   VARCHAR(250) NOT NULL,
  data           JSONB NOT NULL,
  scheduled      TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now()
)
"""
TRANSACTION_ID = "ALTER TABLE outbox ADD COLUMN transaction_id XID8 NOT NULL DEFAULT pg_current_xact_id()"
INDEX = "CREATE INDEX ON outbox (transaction_id, position)"
WRITE = "INSERT INTO outbox (publication_id, message_id, message_type, data) VALUES (%s, %s, %s, %s)"
COLUMNS = {
    "id": "position",
    "kafka_topic": "publication_id",
    "kafka_key": "message_id",
    "kafka_value": "data",
    "create_time": "scheduled",
    "headers": {"type": "message_type", "from": {"value": "100% 'billing'"}},
}


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def article(connection):
    for statement in (ARTICLE, TRANSACTION_ID, INDEX):
        connection.execute(statement)
    return connection


def write(connection, topic, *keys, kind="Recorded"):
    for key in keys:
        connection.execute(WRITE, (topic, key, kind, json.dumps({"b": 1, "a": [key]})))


# -- harvested


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("source", ["snapshot", "transaction_id"])
@pytest.mark.parametrize("delivery", ["barrier", "transactional", "sequenced"])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_articles_table_is_harvested(
    article, dsn, make_topic, bootstrap_servers, group_id, source, delivery, shards
):
    topic = make_topic(partitions=2)
    keys = [f"m{number}" for number in range(50)]
    write(article, topic, *keys)
    settings = {"source": source, "delivery": delivery, "shards": shards, "leadership": "solo", "columns": COLUMNS}
    config = harvest_config(dsn, bootstrap_servers, group_id, **settings)
    assert Harvest(config).drain(60).records == 50
    write(article, topic, "later")
    Harvest(config).drain(60)
    records = read_topic(bootstrap_servers, topic, isolation="read_committed")
    assert sorted(record.key for record in records) == sorted([*keys, "later"])
    (first,) = (record for record in records if record.key == "m0")
    assert json.loads(first.value) == {"a": ["m0"], "b": 1}
    assert first.headers == [("type", b"Recorded"), ("from", b"100% 'billing'")]
    assert first.outbox_id == 1


def test_what_every_subscription_has_seen_can_be_deleted_as_the_page_says(
    article, dsn, make_topic, bootstrap_servers, group_id
):
    topic = make_topic()
    write(article, topic, "a", "b")
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", columns=COLUMNS)
    Harvest(config).drain(60)
    write(article, topic, "c")
    article.execute("UPDATE outbox SET scheduled = now() - interval '1 month'")
    page = (Path(__file__).parents[3] / "docs" / "subscriptions.md").read_text(encoding="utf-8")
    article.execute(page.split("```sql\n")[1].split("```")[0])
    assert article.execute("SELECT message_id FROM outbox").fetchall() == [("c",)]


def test_a_transaction_that_commits_late_is_not_skipped(article, dsn, make_topic, bootstrap_servers, group_id):
    topic = make_topic()
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", columns=COLUMNS)
    with psycopg.connect(dsn) as late, Harvest(config):
        write(late, topic, "late")
        write(article, topic, "early")
        eventually(lambda: [record.key for record in read_topic(bootstrap_servers, topic)] == ["early"])
        late.commit()
        eventually(lambda: [record.key for record in read_topic(bootstrap_servers, topic)] == ["early", "late"])


def test_of_a_table_that_nobody_has_read_nobody_says_that_nothing_waits(article, dsn, bootstrap_servers, group_id):
    write(article, "t", "a", "b")
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", columns=COLUMNS)
    outlook = StatusReader(article, config)
    with pytest.raises(OutboxTableError, match="is unknown"):
        outlook.waiting()
    assert not outlook.is_known(outlook.shards())


def test_the_run_of_the_daemon_goes_on_before_its_harvester_has_read_the_table(
    article, dsn, bootstrap_servers, group_id, caplog
):
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", columns=COLUMNS)
    resource = SimpleNamespace(config=lambda: config, connect=lambda: psycopg.connect(dsn))
    settings = OutboxSettings(name="shop", topics=["t"])
    context = SimpleNamespace(
        resources=SimpleNamespace(**{settings.resource_key: resource}), log=logging.getLogger("daemon")
    )
    assert _Daemon(context, settings)._progress() is None
    assert "is unknown" in caplog.text


def test_columns_of_any_name_and_type_are_read(connection, dsn, make_topic, bootstrap_servers, group_id):
    """Names that our statements use themselves, among others; nothing in a name or a constant is SQL."""
    topic = make_topic()
    connection.execute(
        'CREATE TABLE "my %s" (number INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "xid" XID8 NOT NULL '
        'DEFAULT pg_current_xact_id(), "a ""b"" %" UUID, ended BYTEA, id INT, place INT)'
    )
    connection.execute('CREATE INDEX ON "my %s" ("xid", number)')
    uuid = "8f14e45f-ceea-467f-a0b9-5c1f0f0f0f0f"
    connection.execute(
        'INSERT INTO "my %%s" ("a ""b"" %%", ended, id, place) VALUES (%s, %s, 9, NULL)', (uuid, b"\xc3\xbc")
    )
    connection.execute('INSERT INTO "my %s" (id) VALUES (7)')
    columns = {
        "id": "number",
        "transaction_id": "xid",
        "kafka_topic": {"value": topic},
        "kafka_key": 'a "b" %',
        "kafka_value": "ended",
        "headers": {"h'); --": "id", "none": "place"},
    }
    for source in ("snapshot", "transaction_id"):
        config = harvest_config(
            dsn,
            bootstrap_servers,
            group_id,
            leadership="solo",
            outbox_table="my %s",
            columns=columns,
            source=source,
            subscription=source,
        )
        assert Harvest(config).drain(60).records == 2
    records = read_topic(bootstrap_servers, topic)
    assert [(record.key, record.value) for record in records] == [(uuid, "ü"), ("", None)] * 2
    assert records[0].headers == [("h'); --", b"9"), ("none", None)]


# -- refused


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ([], r"ADD COLUMN \"transaction_id\" xid8 NOT NULL DEFAULT pg_current_xact_id\(\); CREATE INDEX"),
        (["ALTER TABLE outbox ADD COLUMN transaction_id BIGINT NOT NULL DEFAULT 0"], "is bigint, not xid8"),
        (["ALTER TABLE outbox ADD COLUMN transaction_id XID8 DEFAULT pg_current_xact_id()"], "SET NOT NULL"),
        ([TRANSACTION_ID], r"CREATE INDEX CONCURRENTLY ON \"outbox\" \(\"transaction_id\", \"position\"\)"),
        ([TRANSACTION_ID, "CREATE INDEX ON outbox (transaction_id, message_id)"], "CREATE INDEX CONCURRENTLY"),
        ([TRANSACTION_ID, f"{INDEX} WHERE position > 10"], "CREATE INDEX CONCURRENTLY"),
        ([TRANSACTION_ID, INDEX, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey"], "CREATE UNIQUE INDEX"),
        ([TRANSACTION_ID, INDEX, "ALTER SEQUENCE outbox_position_seq CACHE 10"], "CACHE 1"),
        ([TRANSACTION_ID, INDEX, "ALTER SEQUENCE outbox_position_seq INCREMENT 50"], "INCREMENT 1"),
        ([TRANSACTION_ID, INDEX, "ALTER TABLE outbox DROP COLUMN data"], "data is missing"),
    ],
)
def test_a_table_that_would_lose_records_is_refused_with_what_mends_it(connection, ddl, words):
    for statement in (ARTICLE, *ddl):
        connection.execute(statement)
    with pytest.raises(OutboxTableError, match=words):
        check_column_mapping(connection, OutboxTable.parse("outbox"), ColumnMapping(**COLUMNS))


def test_the_remedy_mends_it(connection):
    connection.execute(ARTICLE)
    with pytest.raises(OutboxTableError) as refused:
        check_column_mapping(connection, OutboxTable.parse("outbox"), ColumnMapping(**COLUMNS))
    for statement in refused.value.next_step.split(";"):
        connection.execute(statement)
    check_column_mapping(connection, OutboxTable.parse("outbox"), ColumnMapping(**COLUMNS))


def test_all_that_is_wrong_is_said_at_once_and_what_is_printed_mends_it(connection):
    connection.execute(ARTICLE)
    connection.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey")
    connection.execute("ALTER TABLE outbox ADD COLUMN transaction_id XID8")
    connection.execute("ALTER SEQUENCE outbox_position_seq CACHE 10")
    table, mapping = OutboxTable.parse("outbox"), ColumnMapping(**COLUMNS)
    with pytest.raises(OutboxTableError) as refused:
        check_column_mapping(connection, table, mapping)
    for words in ("may be null", "no index begins with position", "no index on (transaction_id, position)", "CACHE 10"):
        assert words in refused.value.evidence
    for statement in refused.value.next_step.split(";"):
        connection.execute(statement)
    check_column_mapping(connection, table, mapping)


def test_what_the_configuration_has_wrong_comes_with_what_the_table_lacks(connection):
    connection.execute(ARTICLE)
    columns = {**COLUMNS, "kafka_key": "no such", "headers": {"h": "nor this"}}
    with pytest.raises(OutboxTableError, match="no such, nor this are missing") as refused:
        check_column_mapping(connection, OutboxTable.parse("outbox"), ColumnMapping(**columns))
    assert "ADD COLUMN" in refused.value.next_step
    assert "CREATE INDEX" in refused.value.next_step


# -- by the commands


@pytest.fixture
def command(dsn, bootstrap_servers, group_id):
    def run(*arguments):
        environment = {
            "HARVEST_DSN": dsn,
            "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
            "HARVEST_LEADER_GROUP_ID": group_id,
            "HARVEST_LEADERSHIP": "solo",
            "HARVEST_COLUMNS": json.dumps(COLUMNS),
        }
        return CliRunner().invoke(app, arguments, env=environment)

    return run


def tables(connection):
    return {name for (name,) in connection.execute("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'")}


def test_no_command_makes_a_native_table_in_the_place_of_another(connection, command):
    refused = command("init").exception
    assert isinstance(refused, OutboxTableError)
    assert "the harvester cannot create" in str(refused)
    for arguments in (
        ["segments", "list"],
        ["segments", "ensure"],
        ["segments", "drop", "--yes"],
        ["migrate"],
        ["pump", "-k", "1", "-n", "1"],
    ):
        refused = command(*arguments).exception
        assert isinstance(refused, ConfigError), arguments
        assert "another layout" in str(refused)
    assert tables(connection) == set()


def test_init_checks_the_table_and_makes_what_stands_beside_it(article, command):
    before = tables(article)
    result = command("init")
    assert result.exit_code == 0, result.output
    made = tables(article) - before
    assert {"outbox_subscriptions", "outbox_parked_ids"} <= made
    assert "outbox_parked" not in made
    printed = command("init", "--print").stdout
    assert "outbox_subscriptions" in printed
    assert "kafka_header_keys" not in printed, "nothing of a native table"
    article.execute(printed.encode())
    article.execute("DROP INDEX outbox_transaction_id_position_idx")
    assert "CREATE INDEX CONCURRENTLY" in str(command("init").exception)


def test_an_audit_reads_the_columns_that_are_named(article, command, dsn, bootstrap_servers, group_id, make_topic):
    topic = make_topic()
    write(article, topic, "a", "b")
    write(article, "another", "c")
    config = harvest_config(
        dsn,
        bootstrap_servers,
        group_id,
        leadership="solo",
        source="transaction_id",
        delivery="barrier",
        columns=COLUMNS,
    )
    Harvest(config).drain(60)
    write(article, topic, "waits")
    result = command("audit", "--topic", topic, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["committed"], report["delivered"], report["pending"], report["wrong_keys"]) == (3, 2, 1, 0)


def test_a_parked_record_is_shown_with_what_its_columns_have(article, command, dsn, bootstrap_servers, group_id):
    write(article, "no/such topic", "m1")
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", columns=COLUMNS)
    Harvest(config).drain(60)
    shown = command("park", "show", "1").stdout
    assert "tombstone" not in shown
    assert "characters, shown with --value" in shown
    assert "header type" in shown
    assert "Recorded" in shown
    assert "not known" not in shown
    assert "None" not in shown
    with_value = command("park", "show", "1", "--value").stdout
    assert '["m1"]' in with_value
    row = json.loads(command("park", "show", "1", "--json").stdout)["row"]
    assert "data" not in row
    assert row["message_id"] == "m1"
    article.execute("DELETE FROM outbox")
    assert "no longer in the outbox" in command("park", "show", "1").stdout


# -- configured


def test_a_file_says_where_the_parts_stand(tmp_path):
    file = tmp_path / "reaper.yaml"
    file.write_text(
        """\
harvest:
  leadership: solo
  columns:
    id: position
    kafka_topic: {value: orders}
    headers:
      type: message_type
      from: {value: "8"}
"""
    )
    columns = load(file).harvest.columns
    assert (columns.id, columns.kafka_topic.value, columns.kafka_key) == ("position", "orders", "kafka_key")
    assert list(columns.headers) == ["type", "from"]


def test_a_variable_says_where_the_parts_stand(monkeypatch):
    monkeypatch.setenv("HARVEST_COLUMNS", json.dumps(COLUMNS))
    assert HarvestConfig(leadership="solo").columns == ColumnMapping(**COLUMNS)


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ("    id: 5", 4, "columns.id"),
        ("    id: {value: x}", 4, "columns.id"),
        ("    kafka_key: {values: x}", 4, "neither a column nor a constant"),
        ("    kafka_key: {value: 7}", 4, "neither a column nor a constant"),
        ("    kafka_key: ''", 4, "not the name of a column"),
        (f"    kafka_key: {'x' * 64}", 4, "more than 63 bytes"),
        ("    id: position\n    kafka_keys: message_id", 5, "columns.kafka_keys"),
        ("    id: position\n    id: other", 5, "twice"),
        ("    headers: {type: [a]}", 4, "columns.headers"),
    ],
)
def test_what_is_no_mapping_is_refused_with_its_place(tmp_path, lines, line, words):
    file = tmp_path / "reaper.yaml"
    file.write_text(f"harvest:\n  leadership: solo\n  columns:\n{lines}\n")
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        load(file)
    assert f"line {line}" in str(refused.value)


def test_columns_are_not_for_mark():
    with pytest.raises(ConfigError, match="cannot be read by `mark`"):
        HarvestConfig(leadership="solo", source="mark", columns=COLUMNS)


# -- plain SQL


class Subscriber:
    """A program that knows no more than the SQL it was given."""

    def __init__(self, dsn, statements, name, publication):
        self._connection = psycopg.connect(dsn, autocommit=True)
        lines = [line.replace("%", "%%") for line in statements.splitlines() if not line.startswith("--")]
        bound = re.sub(r":'(\w+)'", r"%(\1)s", "\n".join(lines))
        self._create, self._add, _, self._durable, self._lock, self._poll, self._advance, _ = [
            each.strip() for each in bound.split(";")
        ][:8]
        self._names = {"subscription_id": name, "publication_id": publication}
        self._connection.execute(self._create)
        self._connection.execute(self._add, self._names)

    def batch(self, between=lambda: None):
        """Poll, and advance; return the keys."""
        connection = self._connection
        with connection.transaction():
            connection.execute(self._durable)
            connection.execute(self._lock, self._names)
            cursor = connection.execute(self._poll, self._names)
            names = [column.name for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            between()
            if rows:
                last = {"transaction_id": str(rows[-1]["transaction_id"]), "position": rows[-1]["position"]}
                connection.execute(self._advance, {**self._names, **last})
        return [row["key"] for row in rows]

    def close(self):
        self._connection.close()


@pytest.fixture
def subscribe(dsn):
    made = []

    def subscribe(statements, name="s", publication="orders"):
        made.append(Subscriber(dsn, statements, name, publication))
        return made[-1]

    yield subscribe
    for each in made:
        each.close()


LAYOUTS = ["article", "native"]


@pytest.fixture(params=LAYOUTS)
def layout(request, connection):
    """The SQL for a layout, and what writes one record there."""
    table = OutboxTable.parse("outbox")
    if request.param == "native":
        NativeTable(outbox=table).create(connection)

        def write_one(connection, key, topic="orders"):
            append(connection, [OutboxRecord(topic=topic, key=key, value="v")])

        return subscribers_sql(table), write_one
    for statement in (ARTICLE, TRANSACTION_ID, INDEX):
        connection.execute(statement)
    return subscribers_sql(table, ColumnMapping(**COLUMNS)), lambda connection, key, topic="orders": write(
        connection, topic, key
    )


def test_a_subscriber_in_plain_sql_gets_its_publication_in_order_and_each_record_once(layout, connection, subscribe):
    statements, write_one = layout
    keys = [f"k{number}" for number in range(250)]
    for key in keys:
        write_one(connection, key)
    write_one(connection, "other", topic="refunds")
    subscriber = subscribe(statements)
    assert [subscriber.batch() for _ in range(4)] == [keys[:100], keys[100:200], keys[200:], []]
    assert subscribe(statements, "another", "refunds").batch() == ["other"]


def test_what_concurrent_transactions_write_is_neither_skipped_nor_seen_too_early(layout, dsn, connection, subscribe):
    """The article's case: the one with the higher position and the later transaction commits first."""
    statements, write_one = layout
    subscriber = subscribe(statements)
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        first.execute("SELECT pg_current_xact_id()")
        write_one(second, "second")
        write_one(first, "first")
        second.commit()
        assert subscriber.batch() == [], "the older one is still open"
        first.commit()
        assert subscriber.batch() == ["first", "second"]
        assert subscriber.batch() == []


def test_two_processes_of_one_subscriber_take_turns(layout, connection, subscribe):
    statements, write_one = layout
    for number in range(150):
        write_one(connection, f"k{number}")
    one, other = subscribe(statements), subscribe(statements)
    second = []
    thread = threading.Thread(target=lambda: second.append(other.batch()))

    def meanwhile():
        thread.start()
        eventually(lambda: connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0] > 0)

    assert len(one.batch(meanwhile)) == 100
    thread.join(60)
    assert [len(each) for each in second] == [50]


def test_a_batch_in_hand_keeps_nobody_else_waiting(layout, connection, subscribe):
    """A transaction with an id would: nothing that comes after it is read while it is open."""
    statements, write_one = layout
    write_one(connection, "first")
    slow, quick = subscribe(statements, "slow"), subscribe(statements, "quick")
    assert quick.batch() == ["first"]
    seen = []

    def meanwhile():
        write_one(connection, "second")
        seen.extend(quick.batch())

    assert slow.batch(meanwhile) == ["first"]
    assert seen == ["second"]
    assert slow.batch() == ["second"]


def test_the_example_is_what_the_command_prints_for_a_native_table():
    example = Path(__file__).parents[3] / "docs" / "examples" / "subscribers.sql"
    assert example.read_text(encoding="utf-8") == subscribers_sql(OutboxTable.parse("outbox"))


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("timestamptz", None),
        ("timestamptz(3)", None),
        ("a_moment", None),
        ("timestamp", "AT TIME ZONE 'UTC'"),
        ("timestamp(3)", "AT TIME ZONE 'UTC'"),
        *(
            (each, "leave `create_time` out")
            for each in ("bigint", "integer", "numeric", "date", "text", "time", "jsonb")
        ),
    ],
)
def test_a_time_that_does_not_say_how_old_a_record_is_is_refused(article, connection, kind, refused):
    """By the check that a start, `harvest check` and `harvest status` share."""
    connection.execute("DROP DOMAIN IF EXISTS a_moment; CREATE DOMAIN a_moment AS timestamptz")
    connection.execute(f'ALTER TABLE outbox ADD COLUMN "made At" {kind}')
    mapping = ColumnMapping(**{**COLUMNS, "create_time": "made At"})
    if refused is None:
        check_column_mapping(connection, OutboxTable.parse("outbox"), mapping)
        return
    with pytest.raises(OutboxTableError, match="made At is") as caught:
        check_column_mapping(connection, OutboxTable.parse("outbox"), mapping)
    assert refused in caught.value.next_step
    if "ALTER TABLE" in caught.value.next_step:
        connection.execute(caught.value.next_step.partition("UTC: ")[2].encode())
        check_column_mapping(connection, OutboxTable.parse("outbox"), mapping)
