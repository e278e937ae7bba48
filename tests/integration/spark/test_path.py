"""The path of the documentation in one session: written by the sink, harvested, read back, and audited."""

import json

import pytest
from confluent_kafka import TopicPartition
from support.sink import ORDERS

from harvest_lib.spark.data_source.harvested import harvested
from harvest_lib.spark.outbox_sink import Records, sink

pytestmark = [pytest.mark.quick, pytest.mark.spark]

WRITTEN = """
SELECT concat('c', id % 7) AS customer, CAST((id * 37) % 100 AS decimal(10, 2)) AS price,
       'f47ac10b-58cc-4372-a567-0e02b2c3d479' AS id
FROM range(100)
"""


def test_orders_come_from_a_frame_to_kafka_and_back_and_the_audit_misses_what_is_gone(
    spark, native, admin, bootstrap_servers
):
    outbox = native.outbox
    outbox.connection.execute(ORDERS)
    records = Records(topic=outbox.topic, key="customer", value=["number", "customer", "price"], order_by=["price"])
    report = sink(
        spark.sql(WRITTEN), dsn=outbox.dsn, batch_id="b", records=records, table="orders", batch_column="batch"
    )
    assert (report.rows, report.status) == (100, "promoted")
    orders = dict(outbox.connection.execute("SELECT number, customer FROM orders").fetchall())
    assert len(orders) == 100

    asked = "SELECT id, kafka_key, kafka_value FROM outbox"
    in_table = {row[0]: row[1:] for row in outbox.connection.execute(asked)}
    assert {json.loads(value)["number"]: key for key, value in in_table.values()} == orders

    assert outbox.harvest(delivery="pipelined", leadership="solo").drain(60).records == 100
    topic = harvested(spark, [outbox.topic], kafka={"bootstrap.servers": bootstrap_servers})
    in_topic = {row.outbox_id: (row.key, bytes(row.value).decode()) for row in topic.collect()}
    assert in_topic == in_table

    found = native.audit()
    assert (found.records, found.committed, found.keys, found.ok) == (100, 100, 7, True)
    gone = native.log()[0]
    place = TopicPartition(outbox.topic, gone.partition, gone.offset + 1)
    admin.delete_records([place])[place].result(60)
    found = native.audit()
    assert (found.records, found.lost, found.keys_with_gaps, found.ok) == (99, 1, 1, False)
    assert [record for _, record, *_ in native.findings("lost")] == [str(gone.outbox_id)]
