"""Reads the committed records: from a query in a read-only snapshot of Postgres, or from a file.

Memory is bounded: a query is read through a server-side cursor, a file line by line. For invalid input, the error names
the query, or the file and the line.
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
from harvest_lib.postgres.database import connect, lift_timeouts
from harvest_lib.postgres.translation import HIDDEN_ROWS, evidence_of, translate

_PAGE_ROWS = 5_000


def read_query(conninfo: str, query: str | sql.Composed, *, topics: Collection[str] = ()) -> Iterator[CommittedRecord]:
    """Yield a query's rows: column 1 is the id, column 2 (optional) the key, column 3 (optional) the topic, column 4
    (optional, only in a composed query) the content, as the expression `CONTENT` computes it. In a composed query, each
    % must be doubled.

    Rows with a topic that is not in `topics` are skipped. A key that is null is unknown, and is not compared. The
    connection is open from the first row to the last. Raises DatabaseUnavailable or DatabaseAccessDenied. If Postgres
    refuses the query, or its first column is not an integer, raises DatabaseError with the query.
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
                    # The fourth column of a user's query is not compared, because it is no content.
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

    Only the id is required. An empty key is unknown and not compared. Rows with a topic that is not in `topics` are
    skipped. Raises ConfigError with the line.
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
    """Return an id, given as an integer or its text. Raises ValueError or TypeError."""
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
        return value.encode("utf-8", "surrogateescape")  # restores bytes of a file that are not UTF-8
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()
