"""Assets of Airflow for outboxes and topics, by the URIs that other packages give them.

The Kafka provider and the Postgres provider make the same URIs, so a DAG that writes a topic, one that watches it, and
OpenLineage mean the same asset. Neither provider has to be installed.
"""

from collections.abc import Sequence

from airflow.sdk import Asset, AssetWatcher

from harvest_lib.errors import ConfigError
from harvest_lib.record import is_legal_topic


def topic_asset(bootstrap_servers: str, topic: str, *, watchers: Sequence[AssetWatcher] = ()) -> Asset:
    """Return the asset `kafka://HOST:PORT/TOPIC`. Of several servers, with commas between them, the first names it.

    Raises ConfigError for a text that is no server or no topic.
    """
    server = bootstrap_servers.split(",", maxsplit=1)[0].strip().rpartition("//")[2]
    if not server or "/" in server:
        raise ConfigError(
            f"{bootstrap_servers[:80]!r} names no server of Kafka",
            field="bootstrap_servers",
            next_step="give HOST:PORT, as in `bootstrap.servers`",
        )
    if not is_legal_topic(topic):
        raise ConfigError(f"{topic[:80]!r} cannot name a topic", field="topic", next_step="correct the topic")
    return Asset(uri=f"kafka://{server}/{topic}", watchers=[*watchers])


def outbox_asset(
    host: str, database: str, *, table: str = "outbox", port: int = 5432, watchers: Sequence[AssetWatcher] = ()
) -> Asset:
    """Return the asset `postgres://HOST:PORT/DATABASE/SCHEMA/TABLE`. `table` is `table` or `schema.table`; the default
    schema is `public`. Raises ConfigError if host, database or table is missing."""
    schema, _, name = table.rpartition(".")
    for field, value in {"host": host, "database": database, "table": name}.items():
        if not value or "/" in value or (field == "host" and ":" in value):
            raise ConfigError(
                f"{value[:80]!r} cannot be part of the URI of an outbox",
                field=field,
                next_step="give the port as port=" if ":" in value else f"give the {field}",
            )
    return Asset(uri=f"postgres://{host}:{port}/{database}/{schema or 'public'}/{name}", watchers=[*watchers])
