"""A role that Postgres knows by its certificate alone: libpq's settings for security reach the JDBC driver."""

import os
import shutil

import psycopg
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.waiting import eventually

from harvest_lib.errors import ConfigError
from harvest_lib.spark.sink.database import Tables, connect, jdbc_target, security_of

pytestmark = [pytest.mark.full, pytest.mark.spark]

ROLE = "certified"


@pytest.fixture
def by_certificate(secure_stack):
    """A connection string without a password, of a role that needs a certificate."""
    server, authority = secure_stack.postgres, secure_stack.security.authority
    data = server.folder / "data"
    issued, owner = authority.issue(ROLE), (data / "server.pem").stat()
    shutil.copy(authority.certificate, data / "ca.pem")
    os.chown(data / "ca.pem", owner.st_uid, owner.st_gid)
    rules = (data / "pg_hba.conf").read_text()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN")
        connection.execute("ALTER SYSTEM SET ssl_ca_file = 'ca.pem'")
        (data / "pg_hba.conf").write_text(f"hostssl all {ROLE} 127.0.0.1/32 cert\n{rules}")
        connection.execute("SELECT pg_reload_conf()")
        password_only = {"password", "channel_binding"}
        given = {name: value for name, value in conninfo_to_dict(server.dsn).items() if name not in password_only}
        given |= {"user": ROLE, "sslcert": str(issued.certificate), "sslkey": str(issued.key)}
        conninfo = make_conninfo("", **given)
        eventually(lambda: connects(conninfo), "it is let in")
        yield conninfo
        (data / "pg_hba.conf").write_text(rules)
        connection.execute("ALTER SYSTEM RESET ssl_ca_file")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(f"DROP ROLE {ROLE}")


def connects(conninfo):
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError:
        return False
    return True


def test_spark_comes_in_by_the_certificate(by_certificate, spark):
    with connect(by_certificate) as connection:
        connection.execute("CREATE TEMPORARY TABLE staging ()")
        named = sql.Identifier("staging")
        target = jdbc_target(connection, Tables(business=None, outbox=named, staging=named, ledger=named))
    query = """
        SELECT a.usename::text, s.ssl FROM pg_stat_activity AS a JOIN pg_stat_ssl AS s USING (pid)
        WHERE pid = pg_backend_pid()
    """
    read = spark.read.format("jdbc").options(**target.properties, url=target.url, query=query)
    ((user, is_encrypted),) = read.load().collect()
    assert (user, is_encrypted) == (ROLE, True)


def written(folder, key, *, form=serialization.PrivateFormat.PKCS8, name="client.key", password=None):
    hides = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    file = folder / name
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, hides))
    return str(file)


def test_what_the_driver_cannot_use_is_named(tmp_path):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    whole = written(tmp_path, key)
    assert security_of({"sslkey": whole}) == {"sslkey": whole, "pemKeyAlgorithm": "RSA"}
    assert security_of({"sslmode": "verify-full", "channel_binding": "require", "dbname": "x"}) == {
        "sslmode": "verify-full",
        "channelBinding": "require",
    }
    (tmp_path / "client.pk8").write_bytes(b"\x30\x82")
    assert security_of({"sslkey": str(tmp_path / "client.pk8")}) == {"sslkey": str(tmp_path / "client.pk8")}
    for unusable in (
        written(tmp_path, key, name="client.crt"),
        written(tmp_path, key, form=serialization.PrivateFormat.TraditionalOpenSSL, name="old.key"),
        written(tmp_path, key, password=b"canary", name="hidden.key"),
        str(tmp_path / "missing.key"),
    ):
        with pytest.raises(ConfigError, match="cannot use the key") as error:
            security_of({"sslkey": unusable})
        assert "openssl pkcs8 -topk8" in error.value.next_step
    with pytest.raises(ConfigError, match="has no sslcrl"):
        security_of({"sslcrl": "revoked.pem"})
