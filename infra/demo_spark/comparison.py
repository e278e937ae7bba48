"""Results of a run: the orders in each place beside those that were written to files, each with its content."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from harvest_lib.database import connect
from harvest_lib.errors import StackError
from infra.demo.place import Place
from infra.demo_spark.orders import Order

_READ_SECONDS = 30.0


def in_business_table(place: Place) -> list[Order]:
    """Read the table that Spark writes."""
    with connect(place.dsn) as connection:
        rows = connection.execute("SELECT order_id, customer, cents FROM orders").fetchall()
    return [Order(*row) for row in rows]  # type: ignore[arg-type]  # rows of the demo's own table


def in_topic(place: Place) -> list[Order]:
    """Read the committed records of the topic."""
    consumer = Consumer(
        {
            **place.kafka,
            "group.id": f"look-{uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    orders = []
    try:
        partitions = set(consumer.list_topics(place.topic, _READ_SECONDS).topics[place.topic].partitions)
        consumer.assign([TopicPartition(place.topic, partition, OFFSET_BEGINNING) for partition in partitions])
        while partitions:
            record = consumer.poll(_READ_SECONDS)
            if record is None:
                raise StackError("Kafka does not hand out its records", next_step="read the broker's log")
            if (error := record.error()) is None:
                value = json.loads(record.value() or b"{}")
                orders.append(Order(value["order_id"], value["customer"], value["cents"]))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own code
                partitions.discard(record.partition() or 0)
            else:
                raise StackError("a topic cannot be read", evidence=error.str(), next_step="run it again")
    finally:
        consumer.close()
    return orders


def totals(place: Place) -> dict[str, tuple[int, int]]:
    """Read the totals of the consumer: orders and cents of each customer."""
    with connect(place.dsn) as connection:
        rows = connection.execute("SELECT customer, orders, cents FROM order_totals").fetchall()
    return {str(customer): (int(str(orders)), int(str(cents))) for customer, orders, cents in rows}


def differences(written: Iterable[Order], found: Iterable[Order]) -> dict[str, int]:
    """Count the orders found, those that are lost, and those too many. An order that differs is both."""
    expected, there = Counter(written), Counter(found)
    return {
        "rows": there.total(),
        "lost": (expected - there).total(),
        "duplicates": (there - expected).total(),
    }


def total_differences(written: Iterable[Order], found: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Count the orders in the totals, by customer; `wrong_sums` are customers whose cents alone differ."""
    orders, cents = Counter[str](), Counter[str]()
    for order in written:
        orders[order.customer] += 1
        cents[order.customer] += order.cents
    surplus = [found.get(each, (0, 0))[0] - orders[each] for each in orders.keys() | found.keys()]
    return {
        "rows": sum(count for count, _ in found.values()),
        "lost": -sum(each for each in surplus if each < 0),
        "duplicates": sum(each for each in surplus if each > 0),
        "wrong_sums": sum(found.get(each) not in {None, (orders[each], cents[each])} for each in orders),
    }


def summary(places: Mapping[str, Mapping[str, int]], rows: int, kills: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the report: fine only if something was written, each joint was killed, and every place is equal."""
    lost, duplicates = (sum(each[name] for each in places.values()) for name in ("lost", "duplicates"))
    wrong_sums = places["effects"]["wrong_sums"]
    were_killed = bool(kills) and all(joint["kills"] for joint in kills)
    return {
        "ok": bool(rows) and were_killed and not (lost or duplicates or wrong_sums),
        "rows": rows,
        "effects": places["effects"]["rows"],
        "lost": lost,
        "duplicates": duplicates,
        "wrong_sums": wrong_sums,
        "kills": sum(joint["kills"] for joint in kills),
        "places": dict(places),
        "joints": list(kills),
    }
