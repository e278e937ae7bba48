"""The outbox and the topic of the platform's own definitions. They are created if missing, never changed."""

from collections.abc import Mapping

from harvest_lib.kafka_client import create_topic
from harvest_lib.outbox import NativeTable, OutboxTable, create_beside
from harvest_lib.outbox.stamping import add_stamp
from harvest_lib.postgres.database import connect

OUTBOX = "outbox"
TOPIC = "flights"

_PARTITIONS = 4
_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"


def prepare(dsn: str, bootstrap_servers: str) -> None:
    """Make the native outbox with the tables beside it, and the topic. Raises DatabaseError or KafkaError."""
    table = OutboxTable.parse(OUTBOX)
    with connect(dsn) as connection:
        if connection.execute(_EXISTS, (str(table),)).fetchone() != (True,):
            NativeTable(outbox=table).create(connection)
            create_beside(connection, table)
            add_stamp(connection, table)
    create_topic({"bootstrap.servers": bootstrap_servers}, TOPIC, partitions=_PARTITIONS, config={})


def variables(known: Mapping[str, str], *, is_ours: bool) -> dict[str, str]:
    """Return the harvester's variables, besides the addresses, that the environment does not set.

    For foreign definitions it is only the group, which a component's file may override.
    """
    group = {"HARVEST_LEADER_GROUP_ID": known.get("HARVEST_LEADER_GROUP_ID", "harvest-local")}
    return {**group, "HARVEST_DELIVERY": known.get("HARVEST_DELIVERY", "transactional")} if is_ours else group
