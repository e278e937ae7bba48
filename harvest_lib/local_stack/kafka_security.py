"""The security settings of a Kafka cluster. A secured cluster has two listeners, both with TLS, and ACLs and users.

Clients connect to the listener `SASL` (SASL_SSL, SCRAM-SHA-512) or `TLS` (SSL, with a client certificate). A user is
the same principal at both listeners: the user name of SCRAM, or the CN of the certificate. Brokers and controllers use
certificates too, so that no listener accepts an anonymous client. Operations without an ACL are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harvest_lib.local_stack.certificates import Certificate

SASL_USER = "harvest"
"""The user of a cluster that is not secured."""
BROKER = "broker"
OPERATOR = "operator"
MECHANISM = "SCRAM-SHA-512"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """The files of a secured cluster: the authority's certificate, the certificates by user or server name, and the
    folder with the users' passwords. The user `operator` has all rights."""

    authority: Path
    certificates: Mapping[str, Certificate]
    passwords: Path
    users: tuple[str, ...]

    def settings(self) -> dict[str, object]:
        """Return the security settings of brokers. They require listeners with the names SASL, TLS and CONTROLLER."""
        required = {f"listener.name.{each}.ssl.client.auth": "required" for each in ("tls", "controller")}
        return {
            "inter.broker.listener.name": "TLS",
            "listener.security.protocol.map": "SASL:SASL_SSL,TLS:SSL,CONTROLLER:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates[BROKER].together,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            **required,
            "listener.name.sasl.ssl.client.auth": "none",
            "ssl.principal.mapping.rules": "RULE:^CN=([A-Za-z0-9._-]+)(,.*)?$/$1/,DEFAULT",
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.sasl.{MECHANISM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": AUTHORIZER,
            "super.users": f"User:{BROKER};User:{OPERATOR}",
            "allow.everyone.if.no.acl.found": "false",
        }

    def format_arguments(self) -> list[str]:
        """Return StorageTool's arguments that add the users to new data. The arguments contain passwords."""
        return [
            word
            for user in self.users
            for word in ("--add-scram", f"{MECHANISM}=[name={user},password={(self.passwords / user).read_text()}]")
        ]

    def by_password(self, user: str, servers: str) -> dict[str, str]:
        """Return the client settings of a user at the listener SASL, without the password."""
        return {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
        }

    def by_certificate(self, user: str, servers: str) -> dict[str, str]:
        """Return the client settings of a user at the listener TLS. They contain paths, and no secrets."""
        return {
            "bootstrap.servers": servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.certificates[user].certificate),
            "ssl.key.location": str(self.certificates[user].key),
        }


def unsecured_settings(roles: Sequence[str], password: str, *, acls: bool) -> dict[str, object]:
    """Return the security settings of brokers without TLS. Each of `roles` is a listener. Only the listener `sasl`
    requires authentication; its single user has this password."""
    login = f'PlainLoginModule required user_{SASL_USER}="{password}";'
    return {
        **({"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"} if acls else {}),
        "inter.broker.listener.name": "PLAIN",
        "listener.security.protocol.map": ",".join(
            f"{role.upper()}:{'SASL_PLAINTEXT' if role == 'sasl' else 'PLAINTEXT'}" for role in roles
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"org.apache.kafka.common.security.plain.{login}",
    }
