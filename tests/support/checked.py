"""Tables that `harvest check` inspects, and what it found."""

from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.stamping import add_stamp

RECORD = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)
VALUES (now(), 'orders', 'k', '{}', '{}')
"""


def goharvest(connection):
    OutboxTable.parse("outbox").create(connection)


def native_table(connection, name="outbox"):
    table = OutboxTable.parse(name)
    NativeTable(outbox=table).create(connection)
    add_stamp(connection, table)


def causes(report, severity="error"):
    return [each.cause for each in report.findings if each.severity == severity]
