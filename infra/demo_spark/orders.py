"""The orders: a sequence of JSON files, and the expected result of the Spark job's transformation."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from infra.demo.feeding import Feed

_FILE_ROWS = 1_000
_CUSTOMERS = 500
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class Order(NamedTuple):
    """An order as the business table and a record contain it."""

    order_id: int
    customer: str
    cents: int


class Orders(Feed):
    """Writes files of 1,000 orders into a folder until it is stopped."""

    def __init__(self, folder: Path, *, per_second: int, seed: int) -> None:
        super().__init__("orders", self._write)
        self.written: list[Order] = []
        """Orders in the files so far, in their transformed form, which is computed here without Spark."""
        self._folder, self._pause = folder, _FILE_ROWS / per_second
        self._dice = random.Random(seed)  # noqa: S311 - nothing is kept secret by it

    def count(self) -> int:
        """Return the number of orders in the files."""
        return len(self.written)

    def _write(self) -> Iterator[float]:
        while True:
            self._write_file()
            yield self._pause

    def _write_file(self) -> None:
        first = len(self.written)
        lines, orders = [], []
        for order_id in range(first, first + _FILE_ROWS):
            customer, quantity = f"C{self._dice.randrange(_CUSTOMERS):04}", self._dice.randint(1, 9)
            cents = self._dice.randint(1, 99_999)
            placed = {
                "order_id": order_id,
                "customer": customer,
                "quantity": quantity,
                "price": f"{cents // 100}.{cents % 100:02}",
                "placed_at": (_FIRST + timedelta(seconds=order_id)).isoformat(),
            }
            lines.append(json.dumps(placed))
            orders.append(Order(order_id, customer.lower(), quantity * cents))
        hidden = self._folder / f".{first:09}.json"  # Spark ignores such a name, so it reads only complete files
        hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.written += orders
        hidden.rename(self._folder / hidden.name.removeprefix("."))
