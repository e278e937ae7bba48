"""Comparison of the orders in the business table, the topic and the totals with the orders in the files."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harvest_lib.postgres.database import connect
from infra.demo.comparing import committed_values, differences
from infra.demo.place import Place
from infra.demo_spark.orders import Order


def in_business_table(place: Place) -> list[Order]:
    """Read the orders in the business table, which Spark writes."""
    with connect(place.dsn) as connection:
        rows = connection.execute("SELECT order_id, customer, cents FROM orders").fetchall()
    return [Order(*row) for row in rows]  # type: ignore[arg-type]  # rows of the demo's own table


def in_topic(place: Place) -> list[Order]:
    """Read the orders in the committed records of the topic."""
    values = map(json.loads, committed_values(place))
    return [Order(value["order_id"], value["customer"], value["cents"]) for value in values]


def totals(place: Place) -> dict[str, tuple[int, int]]:
    """Read the totals that consumers computed: number of orders and sum of cents per customer."""
    with connect(place.dsn) as connection:
        rows = connection.execute("SELECT customer, orders, cents FROM order_totals").fetchall()
    return {str(customer): (int(str(orders)), int(str(cents))) for customer, orders, cents in rows}


def total_differences(written: Iterable[Order], found: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Count found, lost and surplus orders in the totals. `wrong_sums` counts the customers whose totals are wrong."""
    orders, cents = Counter[str](), Counter[str]()
    for order in written:
        orders[order.customer] += 1
        cents[order.customer] += order.cents
    return {
        **differences(orders, {customer: count for customer, (count, _) in found.items()}),
        "wrong_sums": sum(found.get(each) not in {None, (orders[each], cents[each])} for each in orders),
    }


def summary(places: Mapping[str, Mapping[str, int]], rows: int, kills: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the report. `ok` is true only if orders were written, each joint was killed, and no place differs from
    the files. A place is the business table, the topic or the totals; a joint is a process or connection."""
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
