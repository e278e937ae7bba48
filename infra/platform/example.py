"""The outbox and the topic of this repository's example definitions. They are created if missing, and never changed."""

from collections.abc import Mapping

from harvest_lib.kafka_topics import create_topic
from harvest_lib.outbox import NativeTable, OutboxTable, create_beside
from harvest_lib.outbox.stamping import add_stamp
from harvest_lib.postgres.database import connect

OUTBOX = "outbox"
TOPIC = "flights"

_PARTITIONS = 4
_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"


def prepare(dsn: str, bootstrap_servers: str) -> None:
    """Create the native outbox with its side tables, and the topic, unless they exist. Raises DatabaseError or
    KafkaError."""
    table = OutboxTable.parse(OUTBOX)
    with connect(dsn) as connection:
        if connection.execute(_EXISTS, (str(table),)).fetchone() != (True,):
            NativeTable(outbox=table).create(connection)
            create_beside(connection, table)
            add_stamp(connection, table)
    create_topic({"bootstrap.servers": bootstrap_servers}, TOPIC, partitions=_PARTITIONS, config={})


def variables(known: Mapping[str, str], *, is_ours: bool) -> dict[str, str]:
    """Return the harvester's environment variables except addresses. `known` is the environment; a variable that is not
    in it has a default.

    If `is_ours` is false, return only the leader group, which the file of a component may override.
    """
    group = {"HARVEST_LEADER_GROUP_ID": known.get("HARVEST_LEADER_GROUP_ID", "harvest-local")}
    return {**group, "HARVEST_DELIVERY": known.get("HARVEST_DELIVERY", "transactional")} if is_ours else group
