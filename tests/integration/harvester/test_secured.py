"""The harvester with TLS everywhere and exactly the grants that `harvest grants` prints."""

import json
import stat

import psycopg
import pytest
from cryptography import x509
from psycopg.conninfo import make_conninfo
from support.secured import MARK, MARK_BATCHES, MARK_SEQUENCED, SEQUENCED, SNAPSHOT, printed
from support.waiting import eventually
from typer.testing import CliRunner

from harvest_lib.cli import app
from harvest_lib.config import load
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.telemetry import HarvestTelemetry
from harvest_lib.local_stack.secure import settings_text
from harvest_lib.telemetry import catalogue

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    ("way", "certificate"),
    [
        (MARK, False),
        (MARK, True),
        (SNAPSHOT, False),
        (SNAPSHOT, True),
        (MARK_BATCHES, False),
        (SEQUENCED, False),
        (MARK_SEQUENCED, False),
    ],
    ids=[
        "mark-scram",
        "mark-mtls",
        "snapshot-scram",
        "snapshot-mtls",
        "mark_batches-scram",
        "sequenced-scram",
        "mark_sequenced-scram",
    ],
)
def test_what_is_printed_is_enough(secured, way, certificate):
    secured.prepare(way)
    counts = [30] if way is MARK else [30, 20]  # the second begins from a checkpoint
    for count in counts:
        secured.write(count)
        assert Harvest(secured.config(certificate=certificate, **way)).drain(60).records == count
    # A commit is answered before the last of its markers is written.
    arrived = eventually(lambda: secured.arrived(sum(counts)), "committed")
    assert sorted(record.value for record in arrived) == sorted(f"v{n}" for count in counts for n in range(count))


def test_a_reader_looks_and_audits_and_no_more(secured):
    secured.prepare(SNAPSHOT)
    secured.write(5)
    Harvest(secured.config(**SNAPSHOT)).drain(60)
    variables = {**secured.variables(**SNAPSHOT), "HARVEST_DSN": secured.dsn("reader")}
    variables["HARVEST_BASE_KAFKA_CONFIG"] = secured.kafka_json("reader")
    assert '"backlog_records": 0' in printed("status", "--json", **variables)
    query = "SELECT id, kafka_key FROM outbox"
    eventually(lambda: secured.arrived(5), "committed")
    assert '"lost": 0' in printed(
        "audit", "--topic", secured.topic, "--committed", query, "--isolation", "read_committed", "--json", **variables
    )
    for statement in (
        "DELETE FROM outbox",
        "UPDATE outbox_subscriptions SET epoch = 9",
        "DELETE FROM outbox_parked_ids",
    ):
        with secured.connect("reader") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


def test_a_reader_sees_who_leads_and_what_is_parked(secured):
    secured.prepare(MARK)
    variables = {**secured.variables(**MARK), "HARVEST_DSN": secured.dsn("reader")}
    variables["HARVEST_BASE_KAFKA_CONFIG"] = secured.kafka_json("reader")
    with Harvest(secured.config(**MARK)) as harvest:
        eventually(lambda: harvest.is_leader, "it leads")
        status = json.loads(printed("status", "--json", **variables))
    assert (status["members"], status["kafka_trouble"], status["parked_records"]) == (1, None, 0)
    assert status["leader"].endswith("@127.0.0.1")
    with secured.connect("reader") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("UPDATE outbox SET leader_id = NULL")


def test_nothing_listens_without_tls(secured):
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(make_conninfo(secured.owner_dsn, sslmode="disable", channel_binding="disable"))
    with secured.connect("writer") as connection:
        used = "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl"
        assert connection.execute(used).fetchone()[0] >= "TLSv1.2"


def test_what_the_stack_writes_and_shows(secure_stack, monkeypatch):
    folder = secure_stack.security.folder
    secrets = [file.read_text() for file in (folder / "passwords").iterdir()]
    secrets += [secure_stack.postgres._password_file.read_text()]
    shown = settings_text(folder) + secure_stack.to_json() + repr(secure_stack)
    assert len(secrets) == 5
    assert not [secret for secret in secrets if secret in shown]
    for file in (each for each in folder.rglob("*") if each.is_file()):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert list(folder.parent.rglob("*.arguments")) == []  # passwords went by there
    logs = [log.read_text(errors="replace") for log in (folder.parent / "logs").iterdir()]
    assert logs
    assert not [secret for secret in secrets for log in logs if secret in log]

    for name in ("scram", "mtls"):
        config = load(folder / f"harvester-{name}.yaml").harvest
        with psycopg.connect(config.data_source.conninfo()) as connection:
            assert connection.info.user == "harvester"


def test_a_secured_stack_stands_alone(monkeypatch):
    monkeypatch.setenv("HARVEST_DSN", "host=elsewhere")
    result = CliRunner().invoke(app, ["up", "--secure", "--foreground"])
    assert result.exit_code != 0
    assert "secured stack" in str(result.exception)


def test_when_its_certificates_expire_is_a_metric(secured, caplog):
    secured.prepare(SNAPSHOT)
    harvest = Harvest(secured.config(certificate=True, **SNAPSHOT))
    security = secured.stack.security
    own, authority = security.kafka().certificates["harvester"].certificate, security.kafka().authority
    ends = {
        "ssl.certificate.location": x509.load_pem_x509_certificates(own.read_bytes())[0].not_valid_after_utc,
        "ssl.ca.location": x509.load_pem_x509_certificate(authority.read_bytes()).not_valid_after_utc,
    }
    with harvest, HarvestTelemetry(harvest) as telemetry:
        (found,) = [found for metric, found in telemetry.readings() if metric is catalogue.CERTIFICATE_EXPIRY]
        for setting, end in ends.items():
            assert found[setting,] == end.timestamp()
        assert found["sslrootcert",] > 0
    assert [each for each in caplog.records if each.getMessage().startswith("certificate")] == []
