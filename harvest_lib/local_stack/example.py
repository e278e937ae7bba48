"""What the platform's own definitions are about: an outbox and its topic. Made if they are not there, never changed."""

from collections.abc import Mapping

from harvest_lib.database import connect
from harvest_lib.kafka_client import create_topic
from harvest_lib.outbox import NativeTable, OutboxTable, create_beside

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
    create_topic({"bootstrap.servers": bootstrap_servers}, TOPIC, partitions=_PARTITIONS, config={})


def variables(known: Mapping[str, str], *, is_ours: bool) -> dict[str, str]:
    """Return what the harvester has to be told besides where the servers are, unless somebody else says so.

    Of definitions that are not ours it is only the group, of which a file of a component's may say another.
    """
    group = {"HARVEST_LEADER_GROUP_ID": known.get("HARVEST_LEADER_GROUP_ID", "harvest-local")}
    return {**group, "HARVEST_DELIVERY": known.get("HARVEST_DELIVERY", "transactional")} if is_ours else group
