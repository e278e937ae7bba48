"""Read the committed records: from a query in one read-only snapshot of Postgres, or from a file.

Streams with bounded memory: a server-side cursor, a file line by line. Input that cannot be read as records is an error
that names the query, or the file and the line.
"""

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from harvest_lib.audit.records import CommittedRecord
from harvest_lib.errors import ConfigError, DatabaseAccessDenied, DatabaseError
from harvest_lib.postgres.database import HIDDEN_ROWS, connect, evidence_of, lift_timeouts, translate

_PAGE_ROWS = 5_000


def read_query(conninfo: str, query: str | sql.Composed, *, topics: Collection[str] = ()) -> Iterator[CommittedRecord]:
    """Yield a query's rows: column 1 is the id, column 2 (optional) the key, column 3 (optional) the topic, column 4
    (optional) the content, as `CONTENT` makes it. In a composed query each % is doubled.

    Rows of a topic that is not in `topics` are left out. A key that is null is not known and will not be compared.
    The connection lasts from the first row to the last. Raises DatabaseUnavailable, DatabaseAccessDenied, or
    DatabaseError with the query when Postgres refuses it or its first column is not an integer.
    """
    with connect(conninfo) as connection:
        lift_timeouts(connection)
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        is_text = isinstance(query, str)
        text = query if isinstance(query, str) else query.as_string(connection)
        try:
            with connection.cursor(name="harvest_audit") as cursor:
                cursor.itersize = _PAGE_ROWS
                cursor.execute(text.strip().rstrip(";").encode(), None if is_text else {})
                for row in cursor:
                    if len(row) > 2 and row[2] not in topics:  # noqa: PLR2004  (the third column)
                        continue
                    # A query of the user's has no content: whatever more it selects is not compared.
                    key, content = _key(_column(row, 1)), None if is_text else _column(row, 3)
                    yield CommittedRecord(_row_id(row[0], text), key, content)
        except pg.InsufficientPrivilege as error:
            raise DatabaseAccessDenied(
                "Postgres refused the query",
                evidence=f"{evidence_of(error)}, in: {text}",
                next_step="grant SELECT on what it reads",
            ) from error
        except psycopg.Error as error:
            if connection.broken or HIDDEN_ROWS in str(error):
                raise translate(error) from error
            raise DatabaseError(
                "the query failed",
                evidence=f"{evidence_of(error)}, in: {text}",
                next_step="correct the query: it selects the id, then the key, and only reads",
            ) from error


def read_file(path: Path, *, topics: Collection[str] = ()) -> Iterator[CommittedRecord]:
    """Yield the records of a `.csv` file with the columns id, key and topic, or of JSON lines with these names.

    Only the id must be there; an empty key is not known and will not be compared. Rows of a topic that is not in
    `topics` are left out. Raises ConfigError with the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            for line, row in _csv_rows(file, path) if path.suffix.lower() == ".csv" else _json_rows(file, path):
                try:
                    record = CommittedRecord(_integer(row["id"]), _key(row.get("key") or None))
                except KeyError as error:
                    raise _malformed("it has no `id`", path, line) from error
                except (TypeError, ValueError) as error:
                    raise _malformed(str(error), path, line) from error
                if row.get("topic") is None or row["topic"] in topics:
                    yield record
    except OSError as error:
        raise ConfigError(
            f"the file of committed records cannot be read: {error.strerror}",
            source=str(path),
            next_step="check the path given with --committed-file",
        ) from error


def _json_rows(file: Iterable[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise _malformed(f"not JSON: {error}", path, line) from error
        if not isinstance(row, dict):
            raise _malformed("not a JSON object", path, line)
        yield line, row


def _csv_rows(file: Iterable[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(file)
    try:
        if "id" not in (reader.fieldnames or ()):
            raise _malformed("its first line does not name a column `id`", path, 1)
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise _malformed(str(error), path, reader.reader.line_num) from error  # DictReader counts only rows


def _malformed(reason: str, path: Path, line: int) -> ConfigError:
    return ConfigError(
        f"the file of committed records is malformed: {reason}",
        source=str(path),
        line=line,
        next_step='write CSV with the columns id,key or one {"id": 1, "key": "…"} a line',
    )


def _column(row: Sequence[Any], number: int) -> Any:
    return row[number] if len(row) > number else None


def _row_id(value: object, query: str) -> int:
    try:
        return _integer(value)
    except (TypeError, ValueError) as error:
        raise DatabaseError(
            "the query does not select an integer id first",
            evidence=f"{error}, in: {query}",
            next_step="select the id as column 1 and the key as column 2",
        ) from error


def _integer(value: object) -> int:
    """Return an id from an integer or its text; raises ValueError or TypeError."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise TypeError(f"an id of type {type(value).__name__}")
    number = int(value)
    if isinstance(value, Decimal) and value != number:
        raise ValueError("an id with a fraction")
    if not -(2**63) <= number < 2**63:
        raise ValueError("an id outside 64 bits")
    return number


def _key(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")  # bytes of a file that are not UTF-8 stay what they are
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()
