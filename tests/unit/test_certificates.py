"""The expiry of certificates, by the files that settings name: what they hold, what is wrong with them."""

import datetime as dt
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from support.consuming import Counting, Running
from support.waiting import eventually

from harvest_lib.certificates import WARN_SECONDS, Certificates
from harvest_lib.config import HarvestConfig
from harvest_lib.consume import Consumer
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.harvester.assembly.factory import certificates_of
from harvest_lib.telemetry.catalogue import CERTIFICATE_EXPIRY

pytestmark = pytest.mark.quick

NOW = 1_800_000_000
DAY = 86_400
NONE = "no certificate can be read from it"
CANARY = "canary-4f1d"
KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(days, name="us"):
    """Return a certificate that expires so many days after NOW."""
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    end = dt.datetime.fromtimestamp(NOW + days * DAY, dt.UTC)
    builder = x509.CertificateBuilder(who, who, KEY.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(end - dt.timedelta(days=900)).not_valid_after(end)
    return builder.sign(KEY, hashes.SHA256())


def pem(*days):
    return b"".join(certificate(each).public_bytes(Encoding.PEM) for each in days)


def store(days, chain=(), password=CANARY):
    others = [certificate(each, "authority") for each in chain]
    secret = BestAvailableEncryption(password.encode())
    return serialize_key_and_certificates(b"us", KEY, certificate(days), others, secret)


@pytest.fixture
def file(tmp_path):
    def write(content, name="file.pem"):
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return write


def days_left(*kafka, **postgres):
    found = Certificates(*kafka, postgres=postgres).expiries()
    return {setting: (at - NOW) / DAY for setting, at in found.items()}


def said(caplog, event):
    return [each for each in caplog.records if each.getMessage() == event]


def test_of_what_we_show_the_first_counts_and_of_what_we_trust_the_last(file):
    chain = file(pem(300, 20, 900))
    kafka = {"ssl.certificate.location": chain, "ssl.ca.location": chain, "ssl.key.location": "elsewhere"}
    assert days_left(kafka) == {"ssl.certificate.location": 20, "ssl.ca.location": 900}
    assert days_left(sslcert=chain, sslrootcert=chain) == {"sslcert": 20, "sslrootcert": 900}


def test_a_key_store_is_read_by_its_password(file, caplog):
    path = file(store(300, chain=(40, 900)))
    kafka = {"ssl.keystore.location": path, "ssl.keystore.password": CANARY}
    assert days_left(kafka) == {"ssl.keystore.location": 40}
    assert CANARY not in repr(list(Certificates(kafka)._places))
    assert days_left({**kafka, "ssl.keystore.password": "another"}) == {}
    assert days_left({"ssl.keystore.location": path}) == {}
    assert [each.reason for each in said(caplog, "certificate_unreadable")] == [
        "no certificate can be read from it"
    ] * 2


def test_text_in_the_place_of_a_file_is_read_and_never_told(caplog):
    given = {"ssl.certificate.pem": pem(5).decode(), "ssl.ca.pem": CANARY, "ssl.keystore.password": CANARY}
    certificates = Certificates(given)
    assert {setting: (at - NOW) / DAY for setting, at in certificates.expiries().items()} == {"ssl.certificate.pem": 5}
    assert [each.setting for each in said(caplog, "certificate_unreadable")] == ["ssl.ca.pem"]
    reported = repr([each.__dict__ for each in caplog.records]) + repr(list(certificates._places))
    assert CANARY not in reported
    assert "BEGIN CERTIFICATE" not in reported


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        (b"", NONE),
        (CANARY.encode(), NONE),
        (b"\xff\x00" * 100, NONE),
        (pem(5)[:-200] + b"\n-----END CERTIFICATE-----\n", NONE),
    ],
    ids=["missing", "empty", "text", "bytes", "cut"],
)
def test_what_cannot_be_read_is_said_once_and_what_it_holds_is_not(file, caplog, content, says):
    path = "/nowhere/us.pem" if content is None else file(content)
    certificates = Certificates({"ssl.certificate.location": path, "ssl.ca.location": file(pem(9), "ca.pem")})
    for _ in range(3):
        assert list(certificates.expiries()) == ["ssl.ca.location"]
    (record,) = said(caplog, "certificate_unreadable")
    assert (record.setting, record.reason) == ("ssl.certificate.location", says)
    assert CANARY not in repr(record.__dict__)


def test_a_path_that_is_none(caplog):
    assert days_left({"ssl.certificate.location": "a\0b"}) == {}
    assert [each.reason for each in said(caplog, "certificate_unreadable")] == ["it is no path"]


def test_a_store_of_authorities_that_is_searched_is_no_trouble(tmp_path, caplog):
    assert days_left({"ssl.ca.location": str(tmp_path)}) == {}
    assert days_left({"ssl.ca.location": "probe"}, sslrootcert="system") == {}
    assert caplog.records == []


def test_a_file_that_is_replaced_is_read_again_and_one_that_is_not_is_not(file, monkeypatch):
    path = file(pem(3))
    certificates = Certificates({"ssl.certificate.location": path})
    assert list(certificates.expiring(NOW)) == ["ssl.certificate.location"]
    with monkeypatch.context() as patched:
        patched.setattr("harvest_lib.certificates._certificates_in", None)
        assert list(certificates.expiring(NOW)) == ["ssl.certificate.location"]
    file(pem(300, 400))
    assert certificates.expiring(NOW) == {}
    assert certificates.expiries()["ssl.certificate.location"] == NOW + 300 * DAY


def test_a_file_that_becomes_readable_is_read(file, monkeypatch):
    """A new one is root's for a moment: then neither its content nor its time changes."""
    path = Path(file(pem(3)))
    certificates = Certificates({"ssl.certificate.location": str(path)})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        assert certificates.expiries() == {}
        assert certificates.expiries() == {}
    path.chmod(0o640)
    assert certificates.expiries() == {"ssl.certificate.location": NOW + 3 * DAY}


@pytest.mark.parametrize(("days", "is_soon"), [(15, False), (13, True), (-1, True)])
def test_what_expires_soon_or_has_is_logged_every_day(file, caplog, monkeypatch, days, is_soon):
    monkeypatch.setattr("harvest_lib.certificates._EVERY_SECONDS", 0.05)
    stopping, asked = threading.Event(), []

    def clock():
        asked.append(NOW)
        return NOW

    Certificates({"ssl.certificate.location": file(pem(days))}).begin(stopping, clock)
    eventually(lambda: len(asked) > 2, "asked again")
    stopping.set()
    found = said(caplog, "certificate_expires")
    assert bool(found) is is_soon
    if is_soon:
        expires_at = dt.datetime.fromtimestamp(NOW + days * DAY, dt.UTC).isoformat()
        assert {(each.setting, each.expires_at) for each in found} == {("ssl.certificate.location", expires_at)}
        assert found[0].levelno == logging.WARNING
    assert WARN_SECONDS == 14 * DAY


def test_a_configuration_names_those_of_all_its_clients(file):
    ours, base, database = file(pem(7), "ours.pem"), file(pem(8), "base.pem"), file(pem(9), "database.pem")
    config = HarvestConfig(
        leader_group_id="g",
        data_source=f"host=db dbname=shop sslcert={database}",
        base_kafka_config={"bootstrap.servers": "kafka:9092", "ssl.ca.location": base},
        producer_kafka_config={"ssl.certificate.location": ours},
    )
    found = {setting: (at - NOW) / DAY for setting, at in certificates_of(config).expiries().items()}
    assert found == {"ssl.certificate.location": 7, "ssl.ca.location": 8, "sslcert": 9}


def test_without_the_package_that_is_said_once_and_nothing_else_happens(file, caplog):
    """In a process where it cannot be imported, and where all of the library is."""
    path = file(pem(1))
    program = f"""
import logging, sys
sys.modules["cryptography"] = None
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "cryptography" else real(name, *rest)
logging.basicConfig(format="%(message)s")
from harvest_lib.certificates import Certificates
import harvest_lib.consume, harvest_lib.harvester.harvest
none, some = Certificates(), Certificates({{"ssl.certificate.location": {path!r}}})
print(none.expiries(), some.expiries(), some.expiries())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "{} {} {}\n"
    assert done.stderr == "certificates_unknown\n"


def test_a_consumer_measures_and_logs_its_own(file, caplog):
    in_three_days = (int(time.time()) - NOW) / DAY + 3
    settings = {"bootstrap.servers": "127.0.0.1:9", "ssl.certificate.location": file(pem(in_three_days))}
    consumer = Consumer(Counting(), name="c", topics=["t"], settings=settings, store=lambda _: None)
    (found,) = [found for metric, found in ConsumerTelemetry(consumer).readings() if metric is CERTIFICATE_EXPIRY]
    assert round(found["ssl.certificate.location",]) == round(NOW + in_three_days * DAY)
    running = Running(consumer.run)
    eventually(lambda: said(caplog, "certificate_expires"), "said at the start")
    assert running.end() is None
    eventually(lambda: not [each for each in threading.enumerate() if each.name == "harvest-certificates"], "over")
