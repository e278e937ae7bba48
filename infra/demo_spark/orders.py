"""The orders: files of JSON that come one after the other, and the result that the transform must give."""

import json
import random
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

_FILE_ROWS = 1_000
_CUSTOMERS = 500
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class Order(NamedTuple):
    """An order as the business table and a record have it."""

    order_id: int
    customer: str
    cents: int


class Orders:
    """Writes files into a folder, on a thread of its own, until it is stopped."""

    def __init__(self, folder: Path, *, per_second: int, seed: int) -> None:
        self.written: list[Order] = []
        """Orders in the files by now, transformed: worked out here, without Spark."""
        self._error: BaseException | None = None
        self._folder, self._pause = folder, _FILE_ROWS / per_second
        self._dice = random.Random(seed)  # noqa: S311 - nothing is kept secret by it
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def count(self) -> int:
        """Return how many orders are in files. Raises the error that stopped the others."""
        if self._error is not None:
            raise self._error
        return len(self.written)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._write_file()
                self._ending.wait(self._pause)
        except BaseException as error:  # noqa: BLE001 - the caller of `count` raises it
            self._error = error

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
