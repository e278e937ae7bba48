"""The files of a secured stack: an authority, users, and configurations to copy, all in one folder.

    ca.pem                            the authority that servers and clients are checked against
    NAME.pem  NAME.key                the certificate by which NAME comes to Kafka
    passwords/NAME                    the password of NAME for Postgres and for Kafka's SCRAM
    NAME.pgpass                       the same for libpq, as `passfile`
    harvester-scram.yaml  harvester-mtls.yaml   configurations of a harvester; they name files and hold no secret
    harvester.env                     the password that the first of them leaves to the environment
    operator.json                     the client settings of the operator, who may do everything in Kafka

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
"""The users without any right of their own: `harvest grants` says which they need."""

HOSTS = ("127.0.0.1", "localhost")

_POSTGRES = "postgres"
_USERS = (OPERATOR, *ROLES)


class Security:
    """The authority and the users below a state folder."""

    def __init__(self, state: Path, *, version: str, parts: Path | None = None) -> None:
        """Prepare for a version of Postgres; nothing is written yet."""
        self._version, self._parts = version, parts or state
        self.folder = state / "secure"
        self.authority = Authority(self.folder)

    def make(self) -> None:
        """Create the authority and passwords if missing, and new certificates; install a Postgres with TLS."""
        bring_binaries(self._version, self._parts)
        self.authority.make()
        make_folder(self.folder / "passwords").chmod(0o700)
        for server in (BROKER, _POSTGRES):
            self.authority.issue(server, hosts=HOSTS)
        for user in _USERS:
            self.authority.issue(user)
            self.password(user)

    def tls(self) -> ServerTls:
        """Return the TLS parts of the Postgres server; their files are there after `make`."""
        return ServerTls(
            binaries=binaries(self._version, self._parts),
            certificate=self.authority.files(_POSTGRES),
            authority=self.authority.certificate,
        )

    def kafka(self) -> KafkaSecurity:
        """Return the security settings of the brokers; their files are there after `make`."""
        return KafkaSecurity(
            authority=self.authority.certificate,
            certificates={name: self.authority.files(name) for name in (BROKER, *_USERS)},
            passwords=self.folder / "passwords",
            users=_USERS,
        )

    def password(self, user: str) -> str:
        """Return the password of a user, which is made once."""
        return kept_secret(self.folder / "passwords" / user)

    def admit(self, dsn: str) -> None:
        """Make the roles in Postgres unless they are there, and write how each connects."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            known = {name for (name,) in connection.execute("SELECT rolname FROM pg_roles")}
            for role in ROLES:
                if role not in known:
                    # The server gets a verifier, so that no log of its can have the password.
                    verifier = sql.Literal(scram_verifier(connection, self.password(role)))
                    connection.execute(
                        sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), verifier)
                    )
        place = conninfo_to_dict(dsn)
        for role in ROLES:
            line = f"{place['host']}:{place['port']}:*:{role}:{self.password(role)}\n"
            write_private(self.folder / f"{role}.pgpass", line)

    def dsn(self, dsn: str, role: str) -> str:
        """Return how a role connects: `dsn` in its place, the password by file."""
        place = {name: value for name, value in conninfo_to_dict(dsn).items() if name != "password"}
        return make_conninfo("", **{**place, "user": role, "passfile": str(self.folder / f"{role}.pgpass")})

    def write_settings(self, dsn: str, *, by_password: str, by_certificate: str) -> None:
        """Write the configurations of a harvester: servers by listener, Postgres by `dsn`."""
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
    """Return the text to show for a secured stack: configurations, and the commands to go on with. No secret."""
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
            # Not by psql, whose command line would have the owner's password.
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
