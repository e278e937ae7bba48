"""`harvest_lib.examples.order_totals`, broken as BROKEN says: its offset is not stored, or its fence is not asked."""

import os

import typer

from harvest_lib.consume import postgres_store
from harvest_lib.examples import order_totals

_REPLACED = {
    "offset": ("SET checkpoint = %s,", "SET checkpoint = CASE WHEN %s::jsonb IS NULL THEN NULL ELSE checkpoint END,"),
    "fence": ("AND fence = %s", "AND %s IS NOT NULL"),
}

if __name__ == "__main__":
    right, wrong = _REPLACED[os.environ["BROKEN"]]
    assert right in postgres_store._COMMIT
    postgres_store._COMMIT = postgres_store._COMMIT.replace(right, wrong)
    typer.run(order_totals.main)
