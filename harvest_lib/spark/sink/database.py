"""Postgres for the jobs: connections, the names of tables, the target of JDBC, and the translation of errors."""

import hashlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row

from harvest_lib.conninfo import parameters_of
from harvest_lib.errors import ConfigError, DatabaseAccessDenied, DatabaseError, DatabaseUnavailable
from harvest_lib.outbox.spark_tables import STAGING_SCHEMA
from harvest_lib.outbox.table import LEDGER_SUFFIX
from harvest_lib.postgres.database import open_session
from harvest_lib.postgres.table_names import is_no_table, name_parts
from harvest_lib.spark.sink import queries

_LONGEST_NAME_BYTES = 63

# libpq gives no SQLSTATE for a connection that failed, only the server's sentence.
_DENIED = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "is not permitted to log in",
    "permission denied",
    "does not exist",
)


_IN_JAVA = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "sslnegotiation": "sslNegotiation",
    "channel_binding": "channelBinding",
    "require_auth": "requireAuth",
    "gssencmode": "gssEncMode",
    "krbsrvname": "kerberosServerName",
}
"""Maps libpq's security parameters to the properties of pgjdbc."""
_NOT_IN_JAVA = frozenset({"sslcrl", "sslcrldir", "ssl_min_protocol_version", "ssl_max_protocol_version", "requirepeer"})
_KEY_OIDS = {
    bytes.fromhex("2a8648ce3d0201"): "EC",
    bytes.fromhex("2a864886f70d010101"): "RSA",
    bytes.fromhex("2b6570"): "Ed25519",
}

# SQLSTATE classes of a connection that broke and of a server that shuts down.
_LOST = ("08", "57P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of a sink. The names of staging table and ledger are made from the name of the business table, or,
    without one, from the name of the outbox.

    `hashes_rows` is true if the staging table itself computes the hash of a row; the writer then sends no hash.
    """

    business: sql.Identifier | None
    outbox: sql.Identifier
    staging: sql.Identifier
    ledger: sql.Identifier
    hashes_rows: bool = False

    @classmethod
    def named(cls, *, business: str | None, outbox: str, columns: str = "") -> "Tables":
        """Return the tables with names such as `table` or `schema.table`. Names are not folded to lower case. Raises
        ConfigError.

        `columns` is a digest of the frame's columns. The digest becomes part of the staging table's name, so that each
        set of columns has its own staging table. Such a staging table hashes its rows.
        """
        beside, option = (outbox, "--outbox") if business is None else (business, "--table")
        return cls(
            business=None if business is None else _identifier(business, option="--table"),
            outbox=_identifier(outbox, option="--outbox"),
            staging=_identifier(beside, "_staging" + (f"_{columns}" if columns else ""), option=option),
            ledger=_identifier(beside, LEDGER_SUFFIX, option=option),
            hashes_rows=bool(columns),
        )

    def fill(self, statement: sql.SQL, **more: sql.Composable) -> sql.Composed:
        """Return the statement with its braces filled by the names of the tables, and by `more`."""
        business = self.business or sql.SQL("")
        return statement.format(business=business, outbox=self.outbox, staging=self.staging, ledger=self.ledger, **more)


def staged_apart(connection: psycopg.Connection, tables: Tables) -> Tables:
    """Return the tables with the staging table in the schema of staging tables, if the database has that schema.

    The name has a digest of the role, which owns the table, and of the table that is filled. Raises DatabaseError.
    """
    with postgres_errors("looking for the schema of staging tables"):
        row = connection.execute(queries.STAGES_APART, {"schema": STAGING_SCHEMA}).fetchone()
    if row is None:
        return tables
    name = tables.staging.as_string(None)
    digest = hashlib.sha256(repr((name, row[0])).encode()).hexdigest()[:16]
    return replace(tables, staging=sql.Identifier(STAGING_SCHEMA, f"staging_{digest}"))


def _identifier(text: str, suffix: str = "", *, option: str) -> sql.Identifier:
    parts = name_parts(text, suffix)
    longest = max(len(part.encode()) for part in parts)
    if is_no_table(text) or longest > _LONGEST_NAME_BYTES:
        raise ConfigError(
            f"{text + suffix!r} cannot name a table",
            field=option,
            next_step=f"use table or schema.table, at most {_LONGEST_NAME_BYTES} bytes each, suffixes included",
        )
    return sql.Identifier(*parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of a table. `filled_by` is the expression for its value if an INSERT leaves the column out."""

    name: str
    type: str
    required: bool = False
    longest_chars: int | None = None
    filled_by: str | None = None
    generated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcTarget:
    """Target of Spark's writes: a URL without secrets, the quoted table, its oid, and the connection's properties."""

    url: str
    table: str
    oid: int
    properties: Mapping[str, str] = field(repr=False)


def dsn_parts(dsn: str) -> dict[str, str]:
    """Return the parameters of a DSN. Raises ConfigError for a DSN that cannot be read."""
    return parameters_of(dsn, field="--dsn")


def connect(dsn: str) -> psycopg.Connection:
    """Open an autocommit connection to a server that accepts writes.

    Raises ConfigError, DatabaseUnavailable or DatabaseAccessDenied.
    """
    dsn_parts(dsn)
    try:
        connection = open_session(dsn, target_session_attrs="read-write")
    except psycopg.Error as error:
        evidence = " ".join(str(error).split())
        if any(sentence in evidence for sentence in _DENIED):
            raise DatabaseAccessDenied(
                "Postgres refused the connection",
                evidence=evidence,
                next_step="check user, password and database of the DSN, and the server's pg_hba.conf",
            ) from error
        raise DatabaseUnavailable(
            "Postgres does not answer",
            evidence=evidence,
            next_step="check host and port of the DSN and whether the server runs and accepts writes",
        ) from error
    return connection


def takes_options(connection: psycopg.Connection) -> bool:
    """Return True if the server accepts settings at the start of a session. A pooler refuses or ignores settings."""
    info = connection.info
    probed = make_conninfo(info.dsn, host=info.host, port=info.port, password=info.password or None)
    try:
        with psycopg.connect(make_conninfo(probed, options="-c outbox_sink.batch=probe")) as probe:
            return probe.execute("SELECT current_setting('outbox_sink.batch', true)").fetchone() == ("probe",)
    except psycopg.OperationalError:
        return False


@contextmanager
def postgres_errors(doing: str) -> Iterator[None]:
    """Translate psycopg's errors into DatabaseErrors that name the operation `doing`."""
    try:
        yield
    except psycopg.Error as error:
        evidence = error.diag.message_primary or " ".join(str(error).split())
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise DatabaseAccessDenied(
                f"Postgres refused {doing}",
                evidence=evidence,
                next_step="grant the user what the message names; `harvest grants postgres --spark-writer ROLE` prints "
                "all that a writer needs",
            ) from error
        if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_LOST):
            raise DatabaseUnavailable(
                f"the connection was lost while {doing}",
                evidence=evidence,
                next_step="run the batch again: the ledger knows whether it was promoted",
            ) from error
        raise DatabaseError(
            f"Postgres failed while {doing}",
            evidence=evidence,
            next_step="correct what the message names and run the batch again: nothing of it was promoted",
        ) from error


def place_of(connection: psycopg.Connection, table: sql.Identifier) -> tuple[int, sql.Identifier] | None:
    """Return a table's oid and its name with the schema, None if there is no such table."""
    name = table.as_string(None)
    with postgres_errors(f"looking for the table {name}"):
        found = connection.execute(queries.PLACE_OF, {"table": name}).fetchone()
    return None if found is None else (found[0], sql.Identifier(found[1], found[2]))


def columns_of(connection: psycopg.Connection, table: sql.Identifier) -> list[TableColumn]:
    """Return a table's columns in their order; an empty list if there is no such table."""
    name = table.as_string(None)
    with (
        postgres_errors(f"looking at the columns of {name}"),
        connection.cursor(row_factory=class_row(TableColumn)) as cursor,
    ):
        return cursor.execute(queries.COLUMNS_OF, {"table": name}).fetchall()


def jdbc_target(connection: psycopg.Connection, tables: Tables) -> JdbcTarget:
    """Return the staging table as the target of Spark's JDBC writer, with the host, user and password that libpq uses.

    Raises ConfigError for a DSN that pgjdbc cannot follow, DatabaseError if the staging table is gone.
    """
    info = connection.info
    if info.host.startswith("/"):
        raise ConfigError(
            "Spark's JDBC driver needs TCP, and this DSN leads to a Unix socket",
            field="--dsn",
            next_step="name a host in the DSN",
        )
    found = place_of(connection, tables.staging)
    if found is None:
        raise DatabaseError(
            f"the staging table {tables.staging.as_string(None)} is gone",
            evidence="this run has made it, or found it, a moment ago",
            next_step="run the batch again, and keep other sessions from dropping it",
        )
    oid, staging = found
    host = f"[{info.host}]" if ":" in info.host else info.host
    return JdbcTarget(
        url=f"jdbc:postgresql://{host}:{info.port}/{quote(info.dbname, safe='')}",
        table=staging.as_string(None),
        oid=oid,
        properties={
            "user": info.user,
            "password": info.password,
            "driver": "org.postgresql.Driver",
            "batchsize": "5000",
            "reWriteBatchedInserts": "true",
            "stringtype": "unspecified",  # columns of dates and times take text too
            # Without this setting the driver's exceptions, and so Spark's log, would contain whole rows.
            "logServerErrorDetail": "false",
            **security_of(info.get_parameters()),
        },
    )


def security_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return libpq's security parameters in pgjdbc's form. Raises ConfigError for a parameter that pgjdbc lacks."""
    if strange := sorted(given.keys() & _NOT_IN_JAVA):
        raise ConfigError(
            f"Spark's JDBC driver has no {', '.join(strange)}, which this DSN asks for",
            field="--dsn",
            next_step="leave it out for this job, or have the server demand it",
        )
    found = {_IN_JAVA[name]: value for name, value in given.items() if name in _IN_JAVA}
    if key := found.get("sslkey"):
        found |= _algorithm_of(Path(key))
    return found


def _algorithm_of(key: Path) -> dict[str, str]:
    """Return pgjdbc's property with the algorithm of a PEM key. A key in DER or PKCS#12 needs no property."""
    try:
        text = key.read_bytes()
    except OSError as error:
        raise _unusable(key, error.strerror or "") from error
    if b"-----BEGIN" not in text:
        return {}
    if key.suffix not in {".key", ".pem"} or b"-----BEGIN PRIVATE KEY" not in text:
        raise _unusable(key, "it is PEM, but not of PKCS#8 without a password in a file .key or .pem")
    body = text.partition(b"-----BEGIN PRIVATE KEY-----")[2].partition(b"-----END")[0]
    begin = b64decode(body)[:64]
    return next(({"pemKeyAlgorithm": name} for oid, name in _KEY_OIDS.items() if oid in begin), {})


def _unusable(key: Path, evidence: str) -> ConfigError:
    return ConfigError(
        f"Spark's JDBC driver cannot use the key {key}: {evidence}",
        field="--dsn",
        next_step=f"openssl pkcs8 -topk8 -nocrypt -in {key} -out {key.with_suffix('.pkcs8.key')}; name that as sslkey",
    )
