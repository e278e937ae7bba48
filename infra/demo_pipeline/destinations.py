"""Readers of the destinations of a run, and their comparison with the source, row by row."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet

from harvest_lib.pipeline.extended_json import loads
from infra.demo.comparing import committed_values
from infra.demo.place import Place
from infra.demo_pipeline.source import rows_of

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Content of a destination: its rows by id. `times` counts the messages for each offset of the commit log; it is
    empty if the destination stores no offsets."""

    rows: Mapping[int, Row]
    times: Mapping[int, int] = field(default_factory=dict)


def in_postgres(dsn: str) -> Arrived:
    """Read the second table."""
    return Arrived(rows=rows_of(dsn, "copied.flights"))


def in_kafka(place: Place) -> Arrived:
    """Read the topic: the newest record of each key. The ids of the CloudEvents contain the offset."""
    rows: dict[int, Row] = {}
    times: Counter[int] = Counter()
    for value in committed_values(place):
        message = loads(value)
        event = message["data"]
        times[int(event["id"].rpartition("-")[2])] += 1
        _apply(rows, message["op"], int(event["subject"]), event["data"])
    return Arrived(rows=rows, times=times)


def in_parquet(folder: Path) -> Arrived:
    """Read the Parquet files in their order: the newest row of each id."""
    rows: dict[int, Row] = {}
    times: Counter[int] = Counter()
    for file in sorted(folder.glob("*.parquet")):
        for row in pyarrow.parquet.read_table(file).to_pylist():
            op, _, offset = row.pop("_op"), row.pop("_timestamp"), row.pop("_offset")
            times[offset] += 1
            _apply(rows, op, row["id"], row)
    return Arrived(rows=rows, times=times)


def differences(source: Mapping[int, Row], arrived: Arrived, changed: Callable[[Row], Row] = dict) -> list[str]:
    """Return a sentence for each row that is missing, is surplus, or differs from the result of `changed` for the
    source's row."""
    found = [f"{key} is missing" for key in source.keys() - arrived.rows.keys()]
    found += [f"{key} is not in the source" for key in arrived.rows.keys() - source.keys()]
    for key in source.keys() & arrived.rows.keys():
        expected, row = changed(source[key]), arrived.rows[key]
        if expected != row:
            columns = {name for name, _ in expected.items() ^ row.items()}
            found.append(f"{key} differs in {', '.join(sorted(columns))}")
    return found


def _apply(rows: dict[int, Row], op: str, key: int, row: Row) -> None:
    if op == "delete":
        rows.pop(key, None)
    else:
        rows[key] = row
