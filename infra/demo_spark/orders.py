"""The orders: files of JSON that come in sequence, and the result that the transform must give."""

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
    """An order as the business table and a record have it."""

    order_id: int
    customer: str
    cents: int


class Orders(Feed):
    """Writes files into a folder until it is stopped."""

    def __init__(self, folder: Path, *, per_second: int, seed: int) -> None:
        super().__init__("orders", self._write)
        self.written: list[Order] = []
        """Orders in the files by now, transformed: worked out here, without Spark."""
        self._folder, self._pause = folder, _FILE_ROWS / per_second
        self._dice = random.Random(seed)  # noqa: S311 - nothing is kept secret by it

    def count(self) -> int:
        """Return how many orders are in files."""
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
        hidden = self._folder / f".{first:09}.json"  # Spark passes over such a name: a file comes whole
        hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.written += orders
        hidden.rename(self._folder / hidden.name.removeprefix("."))
