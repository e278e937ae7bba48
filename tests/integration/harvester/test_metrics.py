"""The numbers of a harvester: their values, their cost to the database, and their values while it is away."""

import os
import signal
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.native import Native
from support.outbox import Outbox, harvest_config
from support.scraping import get, scrape, scrape_until, series
from support.waiting import eventually
from trustme import CA

from harvest_lib.config.choices import ReadingMode
from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.grants import Grants
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import SAMPLED, StatusReader
from harvest_lib.harvester.telemetry import HarvestTelemetry
from harvest_lib.harvester.telemetry import sampler as sampler_module
from harvest_lib.harvester.telemetry.outbox_sample import SampleReader
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.sizes import read_sizes
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.server import Listener

pytestmark = pytest.mark.gate

OURS = (
    *(*catalogue.OF_EVERY_PROCESS, *catalogue.OF_CERTIFICATES),
    *(*catalogue.OF_THE_HARVESTER, *catalogue.OF_THE_OUTBOX),
)
INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp() - make_interval(secs => %(age)s), %(topic)s, 'key-' || g %% 100, '{}', '{}'
FROM generate_series(1, %(records)s) g
"""


@pytest.fixture
def config(dsn, bootstrap_servers, group_id):
    return harvest_config(dsn, bootstrap_servers, group_id, leadership="solo")


@pytest.fixture
def native(dsn):
    made = Native(dsn, size=1_000_000)
    yield made
    made.connection.close()


@pytest.fixture
def serve():
    """Serve a harvester that may never start; return where."""
    opened = []

    def make(harvest):
        telemetry = HarvestTelemetry(harvest)
        listener = Listener("127.0.0.1:0", telemetry)
        opened.extend([telemetry, listener])
        make.telemetry = telemetry
        return listener.address

    yield make
    for each in reversed(opened):
        each.stop()


def write(connection, topic, records, age=0.0):
    connection.execute(INSERT, {"topic": topic, "records": records, "age": age})


def test_every_metric_is_reported_and_none_that_is_not_described(native, config, make_topic, serve):
    topic, began = make_topic(), time.monotonic()
    write(native.connection, topic, 500)
    write(native.connection, f"{topic}-missing", 1)
    harvest = Harvest(config)
    address = serve(harvest)
    with harvest:
        eventually(lambda: harvest.delivered_records == 500, "delivered")
        eventually(lambda: series(scrape(address), "harvest_delivery_latency_seconds_count").get(("0",)), "sampled")
        write(native.connection, topic, 1)
        found = scrape_until(
            address,
            lambda found: (
                series(found, "harvest_parked_records")
                and found["harvest_subscription_delivered_records_total", ("0", "default")] == 501
            ),
            "parked, and the checkpoint is written",
            60,
        )
        _, text = get(address)
    elapsed = time.monotonic() - began
    described = {each.name for each in OURS}
    reported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE harvest_")}
    assert reported == described
    assert found["harvest_leader", ("0",)] == found["harvest_terms_total", ("0",)] == 1
    assert found["harvest_ready", ()] == 1
    assert found["harvest_delivered_records_total", ("0",)] == 501
    assert found["harvest_possible_duplicate_records_total", ("0",)] == 0
    assert found["harvest_batches_total", ("committed", "0")] == found["harvest_batch_duration_seconds_count", ("0",)]
    assert found["harvest_batches_total", ("committed", "0")] == found["harvest_commit_duration_seconds_count", ("0",)]
    assert found["harvest_subscription_epoch", ("0", "default")] == 1
    assert found["harvest_checkpoint_age_seconds", ("0", "default")] <= elapsed
    assert series(found, "harvest_parked_records") == {("parked", f"{topic}-missing"): 1}
    latency = found["harvest_delivery_latency_seconds_sum", ("0",)]
    assert latency > 0
    assert latency <= elapsed * found["harvest_delivery_latency_seconds_count", ("0",)]
    (info,) = series(found, "harvest_info")
    assert {"solo", "snapshot", "barrier", "default", "outbox"} <= set(info)


def test_a_marking_harvester_is_counted_too(outbox, config, serve):
    outbox.fill(300)
    harvest = Harvest(config)
    address = serve(harvest)
    assert scrape(address)["harvest_backlog_records", ()] == 300
    with harvest:
        eventually(lambda: harvest.delivered_records == 300, "delivered")
        eventually(lambda: scrape(address)["harvest_backlog_records", ()] == 0, "seen")
    found = scrape(address)
    assert found["harvest_delivered_records_total", ("0",)] == 300
    assert found["harvest_terms_ended_total", ("revoked", "0")] == 1
    assert found["harvest_leader", ("0",)] == 0


def samples(dsn, config):
    """Return a sample, and what it cost: statements, blocks, scans of the outbox and rows that were read of it."""
    tables = """
        SELECT coalesce(sum(seq_scan), 0), coalesce(sum(seq_tup_read + idx_tup_fetch), 0)
        FROM pg_stat_user_tables WHERE relname ~ '^outbox(_from_|_tail|$)'
    """
    database = "SELECT xact_commit, blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"

    def counts():
        with psycopg.connect(dsn, autocommit=True) as connection:  # a session's counts are there once it has ended
            return [*connection.execute(database).fetchone(), *connection.execute(tables).fetchone()]

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sampler_module.SETTINGS)
        reader = SampleReader(connection, config)
        reader.sample()  # the catalogue is read for the first time
        connection.execute("SELECT pg_stat_force_next_flush()")
        before = counts()
        sample = reader.sample()
        reader.rare()
        connection.execute("SELECT pg_stat_force_next_flush()")
        after = counts()
    return sample, [later - earlier for earlier, later in zip(before, after, strict=True)]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("layout", ["goharvest", "native, from the beginning", "native, behind", "native, of nobody"])
def test_no_number_takes_a_scan_of_the_outbox(dsn, config, layout):
    table = Outbox(dsn, "orders") if layout == "goharvest" else Native(dsn, size=30_000)
    connection = table.connection
    write(connection, "orders", 1_000)
    if layout == "native, behind":
        table.subscribe(table.snapshot(), name="default")
    if layout == "native, of nobody":
        table.subscribe("1:1:", name="default")
        connection.execute("UPDATE outbox_subscriptions SET topics = ARRAY['other']")
    costs = []
    for records in (4_000, 96_000):
        write(connection, "orders", records)  # no statistics are made
        found = [samples(dsn, config) for _ in range(10)]  # autovacuum's work is counted too, and only adds
        sample, _ = found[-1]
        costs.append([min(each) for each in zip(*(cost for _, cost in found), strict=True)])
        assert sample.is_estimate
    assert connection.execute("SELECT count(*) FROM outbox").fetchone()[0] == 101_000
    (statements, blocks, scans, rows), (more_statements, more_blocks, more_scans, more_rows) = costs
    assert scans == more_scans == 0, "no table of the outbox is read as a whole"
    assert statements == more_statements <= 30
    assert rows <= more_rows <= 4 * SAMPLED
    assert more_blocks <= blocks + 200, "deeper indexes, and some more segments: not what is in them"
    if layout != "native, of nobody":
        assert 95_000 <= sample.records <= 101_000


def test_few_records_are_counted_and_many_are_estimated(native, config, serve):
    address = serve(Harvest(config))
    write(native.connection, "orders", SAMPLED)
    found = scrape_until(address, lambda found: found["harvest_backlog_records", ()], "it is counted")
    assert (found["harvest_backlog_records", ()], found["harvest_backlog_is_estimate", ()]) == (SAMPLED, 0)
    write(native.connection, "orders", 9 * SAMPLED)
    found = scrape_until(address, lambda found: found["harvest_backlog_is_estimate", ()], "asked again")
    assert found["harvest_backlog_records", ()] == 10 * SAMPLED


def test_what_is_left_of_a_large_window_is_estimated_from_where_it_is_read(native, config, dsn):
    write(native.connection, "orders", 5_000, age=7_500.0)
    native.subscribe("1:1:", name="default")
    last = native.connection.execute("SELECT max(id) FROM outbox").fetchone()[0]
    checkpoint = {
        "generation": 0,
        "number": 1,
        "position": {"prev": "1:1:", "cur": native.snapshot(), "after": last - 1_500},
        "delivered": 3_500,
        "kept_in": "postgres",
    }
    native.connection.execute(
        "UPDATE outbox_subscriptions SET checkpoint = %s", (psycopg.types.json.Jsonb(checkpoint),)
    )
    sample, _ = samples(dsn, config)
    assert (sample.records, sample.is_estimate) == (1_500, True)
    assert sample.age_seconds // 3_600 == 2


@pytest.mark.full
@pytest.mark.parametrize("layout", ["goharvest", "native"])
def test_the_age_is_by_the_clock_of_the_database(dsn, config, serve, layout):
    table = Outbox(dsn, "orders") if layout == "goharvest" else Native(dsn, size=1_000_000)
    if layout == "native":
        table.subscribe(table.snapshot(), name="default")
    address = serve(Harvest(config))
    assert scrape(address)["harvest_backlog_age_seconds", ()] == 0
    write(table.connection, "orders", 1, age=7_200)
    assert eventually(lambda: scrape(address)["harvest_backlog_age_seconds", ()], "asked") // 3_600 == 2
    table.connection.execute("DELETE FROM outbox")
    write(table.connection, "orders", 1, age=-3_600)  # a writer whose clock is ahead
    eventually(lambda: scrape(address)["harvest_backlog_age_seconds", ()] == 0, "not negative")
    assert scrape(address)["harvest_backlog_records", ()] == 1


@pytest.mark.full
@pytest.mark.parametrize("age", [900.0, -3_600.0], ids=["old", "of a clock that is ahead"])
def test_a_backlog_that_nobody_reduces_is_unhealthy(native, config, serve, make_topic, age):
    topic = make_topic()
    harvest = Harvest(config)
    address = serve(harvest)
    native.subscribe(native.snapshot(), name="default")
    write(native.connection, topic, 3, age=age)

    def stands():
        status, text = get(address, "/progress?seconds=2")
        return text if status == 503 else None

    assert "3 records wait, and none was delivered" in eventually(stands, "seen")
    assert get(address, "/progress?seconds=600")[0] == 200
    assert scrape(address)["harvest_stalled_seconds", ()] >= 2
    with harvest:
        eventually(lambda: get(address, "/progress?seconds=2")[0] == 200, "somebody reduces it")
        eventually(lambda: scrape(address)["harvest_stalled_seconds", ()] == 0, "nothing waits")


def test_after_a_long_silence_the_first_answer_knows_that_it_stalled(native, config, serve):
    native.subscribe(native.snapshot(), name="default")
    native.connection.execute("UPDATE outbox_subscriptions SET updated_at = now() - interval '9 days'")
    write(native.connection, "orders", 1, age=86_400)
    assert get(serve(Harvest(config)), "/progress?seconds=60")[0] == 503


@pytest.mark.full
def test_a_backlog_that_stalls_is_known_at_the_first_question(native, config, serve):
    """Though the row was written just now, as by a leader that raised the epoch, and nobody asked meanwhile."""
    native.subscribe(native.snapshot(), name="default")
    write(native.connection, "orders", 3, age=86_400)
    harvest = Harvest(config)
    address = serve(harvest)

    def looked():
        native.connection.execute("UPDATE outbox_subscriptions SET epoch = epoch + 1, updated_at = now()")
        return serve.telemetry._sampler._watch.stalled_seconds >= 1

    eventually(looked, "it has looked by itself")
    assert get(address, "/progress?seconds=1")[0] == 503


def test_postgres_that_is_away_is_no_trouble_before_the_time_is_over(dsn, bootstrap_servers, serve):
    """Also of a process that was asked nothing before."""
    unreachable = harvest_config(make_conninfo(dsn, port=1), bootstrap_servers, "g", leadership="solo")
    away = serve(Harvest(unreachable))
    status, text = get(away, "/progress?seconds=600")
    assert "the backlog is unknown" in text
    assert status == 200
    assert get(away, "/progress?seconds=0.001")[0] == 503


def test_a_stall_goes_on_while_postgres_is_away(native, config, serve):
    native.subscribe(native.snapshot(), name="default")
    native.connection.execute("UPDATE outbox_subscriptions SET updated_at = now() - interval '9 days'")
    write(native.connection, "orders", 1, age=86_400)
    address = serve(Harvest(config))
    assert get(address, "/progress?seconds=60")[0] == 503
    serve.telemetry._sampler._failed("away")
    assert "the backlog is unknown: away" in get(address, "/progress?seconds=60")[1]
    assert get(address, "/progress?seconds=60")[0] == 503


@pytest.fixture
def elsewhere(stack):
    """A connection to another database of the server."""
    with psycopg.connect(stack.dsn, autocommit=True) as connection:
        yield connection


def test_while_postgres_is_away_it_is_said(native, config, serve, dsn, elsewhere):
    harvest = Harvest(config)
    address = serve(harvest)
    name = native.connection.info.dbname
    with harvest:
        eventually(lambda: scrape(address)["harvest_postgres_up", ()] == 1, "there")
        native.connection.close()
        elsewhere.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        try:
            elsewhere.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            found = scrape_until(address, lambda found: not found["harvest_postgres_up", ()], "away")
            assert series(found, "harvest_backlog_records") == {}, "unknown values are not reported"
            assert found["harvest_terms_total", ("0",)] == 1
            refused = "not currently accepting connections"
            eventually(lambda: refused in get(address, "/progress?seconds=1")[1], "why is said")
            assert get(address, "/progress?seconds=1")[0] == 503
            assert get(address, "/progress?seconds=600")[0] == 200, "not yet"
            assert get(address, "/livez")[0] == 200
            assert found["harvest_postgres_connections_total", ("failed",)] > 0
        finally:
            elsewhere.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(name)))
        eventually(lambda: scrape(address)["harvest_postgres_up", ()] == 1, "back")
        eventually(lambda: get(address, "/progress?seconds=1")[0] == 200, "nothing waits")


def test_what_changes_slowly_takes_nothing_else_away(native, config, serve, monkeypatch):
    def fails(_):
        raise DatabaseUnavailable("the lengths of a million files took too long", next_step="wait")

    monkeypatch.setattr(SampleReader, "rare", fails)
    native.write(3)
    address = serve(Harvest(config))
    for _ in range(2):
        found = scrape_until(address, lambda found: ("harvest_backlog_records", ()) in found, "reported")
        assert found["harvest_postgres_up", ()] == 1
        assert series(found, "harvest_outbox_bytes") == {}


@pytest.fixture
def waits(monkeypatch):
    """The seconds for which scrapes have waited for Postgres, at most."""
    noted, wait_for = [], threading.Condition.wait_for

    def noting(condition, predicate, timeout=None):
        if "Sampler.seen" in getattr(predicate, "__qualname__", ""):
            noted.append(timeout)
        return wait_for(condition, predicate, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", noting)
    return noted


def test_a_server_that_hangs_holds_up_no_scrape(native, config, serve, waits):
    address = serve(Harvest(config))
    eventually(lambda: scrape(address)["harvest_postgres_up", ()] == 1, "there")
    find = "SELECT pid FROM pg_stat_activity WHERE application_name = 'harvest telemetry'"
    backend = native.connection.execute(f"{find} AND datname = current_database()").fetchone()[0]
    os.kill(backend, signal.SIGSTOP)
    try:
        eventually(lambda: scrape(address)["harvest_postgres_up", ()] == 0, "silent")
        assert any(waits)
        waits.clear()
        for _ in range(10):
            assert "does not answer in time" in get(address, "/progress?seconds=0.1")[1]
            assert scrape(address)["harvest_postgres_up", ()] == 0
        assert len(waits) >= 20
        assert set(waits) == {0.0}, "only the first has waited"
    finally:
        os.kill(backend, signal.SIGCONT)
    eventually(lambda: scrape(address)["harvest_postgres_up", ()] == 1, "it answers")


def test_labels_hold_legal_topics_of_a_few(native, config, serve):
    park = (
        "INSERT INTO outbox_parked_ids (subscription, shard, id, kafka_topic, kafka_key, reason, held, transaction_id) "
        "VALUES ('default', 0, %s, %s, 'secret-key', 'missing', %s, '0')"
    )
    topics = [f"topic-{number}" for number in range(30)]
    for number, topic in enumerate([*topics, "no topic\n{}", "x" * 300, *topics[:3], topics[0]]):
        native.connection.execute(park, (number, topic, number == 35))
    found = series(scrape(serve(Harvest(config))), "harvest_parked_records")
    assert found["parked", "topic-0"] == 2
    assert found["held", "topic-0"] == 1
    assert sum(found.values()) == 36
    assert len({topic for _, topic in found}) == 21
    assert found["parked", "other"] == 12
    assert not any("secret" in label for labels in found for label in labels)


def test_who_holds_segments_back_is_said_to_whom_was_granted_what_a_harvester_needs(
    dsn, bootstrap_servers, serve, monkeypatch
):
    native = Native(dsn, size=10, ahead=6)
    role = f"measuring_{uuid.uuid4().hex[:8]}"
    native.connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'granted'").format(sql.Identifier(role)))
    granted = Grants(
        outbox=OutboxTable(("outbox",)),
        mode=ReadingMode.of("snapshot", "barrier"),
        harvester=role,
        reader="",
        writers={},
    )
    native.connection.execute(granted.script().encode())
    config = harvest_config(
        make_conninfo(dsn, user=role, password="granted"), bootstrap_servers, "g", leadership="solo"
    )
    for _ in range(3):
        native.write(10)
    native.subscribe(native.snapshot(), name="default")
    native.subscribe("1:1:", name="forgotten")
    assert len(eventually(native.closed, "closed")) == 3
    native.connection.execute("UPDATE outbox_segments SET closed_at = now() - interval '2 days'")
    monkeypatch.setattr(sampler_module, "_RARE_EVERY_SECONDS", 0.2)
    address = serve(Harvest(config))
    found = scrape(address)
    assert series(found, "harvest_held_segments") == {("default",): 0, ("forgotten",): 3}
    assert series(found, "harvest_held_segments_bytes")["default",] == 0
    held = series(found, "harvest_held_segments_bytes")["forgotten",]
    assert held > 3 * 8192
    with psycopg.connect(dsn, autocommit=True) as connection:
        reader = StatusReader(connection, config)
        assert {name: (each.segments, each.bytes) for name, each in reader.held().items()} == {
            "default": (0, 0),
            "forgotten": (3, held),
        }
    native.write(10)
    native.subscribe(native.snapshot(), name="default")
    eventually(lambda: len(native.closed()) == 4, "one more is closed")
    native.connection.execute("UPDATE outbox_segments SET closed_at = now() - interval '2 days'")
    more = scrape_until(address, lambda found: found["harvest_held_segments", ("forgotten",)] == 4, "it grows")
    assert more["harvest_held_segments_bytes", ("forgotten",)] > held


ON_DISK = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE relkind = 'r' AND relname ~ %s"


@pytest.mark.parametrize("layout", ["goharvest", "native"])
def test_what_the_outbox_and_its_database_take_on_disk_is_said(dsn, config, serve, monkeypatch, layout):
    monkeypatch.setattr(sampler_module, "_RARE_EVERY_SECONDS", 0.2)
    table = Outbox(dsn, "orders") if layout == "goharvest" else Native(dsn, size=1_000)
    address = serve(Harvest(config.model_copy(update={"database_limit_bytes": 10_000_000_000})))
    before = scrape(address)
    assert before["harvest_database_limit_bytes", ()] == 10_000_000_000
    write(table.connection, "orders", 20_000)
    rows = "^outbox$" if layout == "goharvest" else "^outbox_(from|tail)"
    taken = table.connection.execute(ON_DISK, (rows,)).fetchone()[0]
    assert taken > 1_000_000
    found = scrape_until(address, lambda found: found["harvest_outbox_bytes", ()] >= taken, "it grew")
    assert taken <= found["harvest_outbox_bytes", ()] < taken + 500_000, "indexes may have grown since"
    grown = found["harvest_database_bytes", ()] - before["harvest_database_bytes", ()]
    assert grown == pytest.approx(found["harvest_outbox_bytes", ()] - before["harvest_outbox_bytes", ()], abs=500_000)


def test_a_database_whose_size_is_not_ours_to_see(native, dsn, config, unique):
    role = unique("role")[:60]
    database = native.connection.info.dbname
    named = {"role": sql.Identifier(role), "database": sql.Identifier(database)}
    native.connection.execute(sql.SQL("CREATE ROLE {role} LOGIN PASSWORD 'x'").format(**named))
    try:
        native.connection.execute(sql.SQL("GRANT SELECT ON outbox, outbox_segments TO {role}").format(**named))
        with psycopg.connect(dsn, user=role, password="x", autocommit=True) as connection:
            assert read_sizes(connection, native.table.placed(connection)).database > 0
            native.connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC").format(**named))
            sizes = read_sizes(connection, native.table.placed(connection))
            assert (sizes.outbox > 0, sizes.database) == (True, None)
    finally:
        native.connection.execute(sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(**named))


def test_a_certificate_that_expires_soon_is_measured_and_logged(
    native, dsn, bootstrap_servers, group_id, serve, tmp_path, caplog
):
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=5)
    (issued,) = CA().issue_cert("us", not_after=end).cert_chain_pems
    issued.write_to_path(tmp_path / "us.pem")
    kafka = {"ssl.certificate.location": str(tmp_path / "us.pem")}
    harvest = Harvest(harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", base_kafka_config=kafka))
    found = scrape(serve(harvest))
    assert found["harvest_certificate_expiry_timestamp_seconds", ("ssl.certificate.location",)] == end.timestamp()

    def said():
        return [each for each in caplog.records if each.getMessage() == "certificate_expires"]

    assert said() == []
    with harvest:
        eventually(said, "said at the start")
    (record,) = said()
    assert (record.setting, record.expires_at) == ("ssl.certificate.location", end.isoformat())


def test_what_status_says_of_segments_reads_none_of_them(dsn, config):
    """With statistics of when the segments were empty, and in a session that may sort."""
    native = Native(dsn, size=20_000)
    native.subscribe("1:1:", name="forgotten")
    native.connection.execute("ANALYZE outbox")
    write(native.connection, "orders", 45_000)
    native.subscribe(native.snapshot(), name="default")
    assert len(eventually(native.closed, "closed")) == 2
    native.connection.execute("UPDATE outbox_segments SET closed_at = now() - interval '2 days'")
    read = "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables WHERE relname ~ '^outbox_from_'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = connection.execute(read).fetchone()[0]
        held = StatusReader(connection, config).held()
        connection.execute("SELECT pg_stat_force_next_flush()")
    after = native.connection.execute(read).fetchone()[0]
    assert {name: each.segments for name, each in held.items()} == {"default": 0, "forgotten": 2}
    assert after - before < 100
