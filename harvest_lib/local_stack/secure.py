"""The files of a secured stack: an authority, users, and configurations to copy, all in the same folder.

    ca.pem                            certificate of the authority that signs all certificates
    NAME.pem  NAME.key                certificate and key of NAME, for Kafka
    passwords/NAME                    password of NAME, for Postgres and for Kafka's SCRAM
    NAME.pgpass                       the same password for libpq, as `passfile`
    harvester-scram.yaml  harvester-mtls.yaml   configurations of a harvester; they name files and contain no secret
    harvester.env                     environment variable with the Kafka password for harvester-scram.yaml
    operator.json                     the client settings of the operator, the user with all rights in Kafka

Only the owner can read the files.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import psycopg
import yaml
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest_lib.local_stack.certificates import Authority
from harvest_lib.local_stack.kafka_security import BROKER, OPERATOR, KafkaSecurity
from harvest_lib.local_stack.passwords import kept_secret, scram_verifier
from harvest_lib.local_stack.postgres_tls import ServerTls, binaries, bring_binaries
from harvest_lib.local_stack.state import make_folder, write_private

ROLES = ("harvester", "writer", "reader")
"""Users that are created without privileges. `harvest grants` prints the privileges that they need."""

HOSTS = ("127.0.0.1", "localhost")

_POSTGRES = "postgres"
_USERS = (OPERATOR, *ROLES)


class Security:
    """The authority and the users below a state folder."""

    def __init__(self, state: Path, *, version: str, parts: Path | None = None) -> None:
        """Only set the parameters. `version` is Postgres' version. Nothing is written yet."""
        self._version, self._parts = version, parts or state
        self.folder = state / "secure"
        self.authority = Authority(self.folder)

    def make(self) -> None:
        """Create the authority and passwords if they are missing. Create new certificates in any case. Install a
        Postgres with TLS if it is missing."""
        bring_binaries(self._version, self._parts)
        self.authority.make()
        make_folder(self.folder / "passwords").chmod(0o700)
        for server in (BROKER, _POSTGRES):
            self.authority.issue(server, hosts=HOSTS)
        for user in _USERS:
            self.authority.issue(user)
            self.password(user)

    def tls(self) -> ServerTls:
        """Return the TLS files of the Postgres server. The files exist after `make`."""
        return ServerTls(
            binaries=binaries(self._version, self._parts),
            certificate=self.authority.files(_POSTGRES),
            authority=self.authority.certificate,
        )

    def kafka(self) -> KafkaSecurity:
        """Return the security settings of the brokers. Their files exist after `make`."""
        return KafkaSecurity(
            authority=self.authority.certificate,
            certificates={name: self.authority.files(name) for name in (BROKER, *_USERS)},
            passwords=self.folder / "passwords",
            users=_USERS,
        )

    def password(self, user: str) -> str:
        """Return the password of a user. The first call generates it."""
        return kept_secret(self.folder / "passwords" / user)

    def admit(self, dsn: str) -> None:
        """Create the missing roles in Postgres, and write a `pgpass` file for each role."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            known = {name for (name,) in connection.execute("SELECT rolname FROM pg_roles")}
            for role in ROLES:
                if role not in known:
                    # The server gets a verifier, so that the password cannot appear in its log.
                    verifier = sql.Literal(scram_verifier(connection, self.password(role)))
                    connection.execute(
                        sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), verifier)
                    )
        place = conninfo_to_dict(dsn)
        for role in ROLES:
            line = f"{place['host']}:{place['port']}:*:{role}:{self.password(role)}\n"
            write_private(self.folder / f"{role}.pgpass", line)

    def dsn(self, dsn: str, role: str) -> str:
        """Return the connection string of a role: the server of `dsn`, and the role's `pgpass` file as `passfile`."""
        place = {name: value for name, value in conninfo_to_dict(dsn).items() if name != "password"}
        return make_conninfo("", **{**place, "user": role, "passfile": str(self.folder / f"{role}.pgpass")})

    def write_settings(self, dsn: str, *, by_password: str, by_certificate: str) -> None:
        """Write the two configurations of a harvester, the operator's client settings and the environment file. `dsn`
        is the server of Postgres; `by_password` and `by_certificate` are the bootstrap servers of Kafka's listeners."""
        source, security = self.dsn(dsn, "harvester"), self.kafka()
        kafka = {
            "scram": security.by_password("harvester", by_password),
            "mtls": security.by_certificate("harvester", by_certificate),
        }
        for name, settings in kafka.items():
            write_private(self.folder / f"harvester-{name}.yaml", _configuration(source, settings))
        operator = security.by_certificate(OPERATOR, by_certificate)
        write_private(self.folder / "operator.json", json.dumps(operator, indent=2) + "\n")
        password = self.password("harvester")
        variable = f'HARVEST_BASE_KAFKA_CONFIG=\'{{"sasl.password": "{password}"}}\'\n'
        write_private(self.folder / "harvester.env", variable)


_APPLY = (
    'import os, sys, psycopg; psycopg.connect(os.environ["HARVEST_DSN"], autocommit=True).execute(sys.stdin.read())'
)


def settings_text(folder: Path) -> str:
    """Return the text to show for a secured stack: the configurations, and the next commands. It contains no secret."""
    scram, mtls = (folder / f"harvester-{name}.yaml" for name in ("scram", "mtls"))
    variables, operator = folder / "harvester.env", folder / "operator.json"
    by_mtls, by_scram = shlex.quote(str(mtls)), shlex.quote(str(scram))
    return "\n".join(
        [
            "",
            f"# {mtls}: to Kafka by certificate",
            mtls.read_text(),
            f"# {scram}: to Kafka by password, which {variables} has",
            scram.read_text(),
            "# as the owner: the tables; then what each role may do, with the names of your topics",
            f"OWNER=$(jq -r .dsn {shlex.quote(str(folder.parent / 'stack.json'))})",
            f'HARVEST_DSN="$OWNER" harvest init -f {by_mtls}',
            # Not with psql, because its command line would contain the owner's password.
            f'harvest grants postgres -f {by_mtls} | HARVEST_DSN="$OWNER" python -c {shlex.quote(_APPLY)}',
            f"harvest grants kafka -f {by_mtls} --topic orders --json |"
            f" python docs/examples/apply_acls.py {shlex.quote(str(operator))}",
            "# as the harvester: by certificate, or by password",
            f"harvest run -f {by_mtls}",
            f"(set -a; . {shlex.quote(str(variables))}; harvest run -f {by_scram})",
        ]
    )


def _configuration(source: str, kafka: Mapping[str, str]) -> str:
    content = {"harvest": {"leaderGroupID": "harvest-local", "dataSource": source, "baseKafkaConfig": dict(kafka)}}
    return yaml.safe_dump(content, sort_keys=False, width=1000)
