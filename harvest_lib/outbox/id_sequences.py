"""Checks of the sequence of a table's ids: for unsuitable options, and for its end.

If a sequence reserves ids in blocks (CACHE, INCREMENT) or repeats them (CYCLE), ids do not follow the order of commits,
and records of a key would be sent out of order. After the last id of a sequence, every INSERT of the application fails;
`end` reports this in advance, while there is time to change the sequence.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from harvest_lib.errors import DatabaseAccessDenied, OutboxTableError
from harvest_lib.postgres.translation import translated

_NEAR = 0.8
"""Share of all ids: `end` reports a sequence that has given out at least this share."""

_BIGGEST = 2**63 - 1
_LARGEST = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": _BIGGEST}

# Finds the sequence that the column owns, and any sequence that the default of the column uses.
_FOUND = """
SELECT q.seqrelid::regclass::text, q.seqcache, q.seqincrement, q.seqcycle, format_type(q.seqtypid, NULL), q.seqmax,
       format_type(c.atttypid, NULL),
       s.relname::text, n.nspname::text, has_sequence_privilege(q.seqrelid, 'SELECT')
FROM pg_attribute AS c
JOIN pg_sequence AS q ON q.seqrelid = pg_get_serial_sequence(%(table)s, %(column)s)::regclass OR q.seqrelid IN (
  SELECT d.refobjid FROM pg_attrdef AS f
  JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
  WHERE f.adrelid = c.attrelid AND f.adnum = c.attnum AND d.refclassid = 'pg_class'::regclass
)
JOIN pg_class AS s ON s.oid = q.seqrelid
JOIN pg_namespace AS n ON n.oid = s.relnamespace
WHERE c.attrelid = to_regclass(%(table)s) AND c.attname = %(column)s AND NOT c.attisdropped
ORDER BY q.seqrelid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsEnd:
    """The report that a sequence will run out of ids: cause, evidence and remedy."""

    cause: str
    evidence: str
    next_step: str


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    cache: int
    increment: int
    cycles: bool
    type: str
    maximum: int
    column_type: str
    relation: str
    schema: str
    is_readable: bool

    @property
    def unfit(self) -> list[tuple[str, str]]:
        """Options because of which ids do not follow the order of commits, each with the clause that corrects it."""
        found = []
        if self.cache > 1:
            found.append((f"CACHE {self.cache}", "CACHE 1"))
        if self.increment != 1:
            found.append((f"INCREMENT {self.increment}", "INCREMENT 1"))
        if self.cycles:
            found.append(("CYCLE", "NO CYCLE"))
        return found


@dataclass(frozen=True, slots=True)
class IdSequences:
    """The sequences of a table's id column: usually a single sequence, or none if writers set the ids. `table` is the
    table's quoted name."""

    table: str
    column: str = "id"

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Raise OutboxTableError if a sequence reserves ids in blocks or repeats them."""
        for each in self._find(connection):
            if not each.unfit:
                continue
            has, remedy = (" and ".join(has for has, _ in each.unfit), " ".join(clause for _, clause in each.unfit))
            lots = each.cache > 1 or each.increment != 1
            how = "hands out ids in lots" if lots else "begins again at its end"
            raise OutboxTableError(
                f"the sequence of {self.table} {how}, so that they do not follow the order of commits",
                evidence=f"{each.name} has {has}",
                next_step=f"ALTER SEQUENCE {each.name} {remedy}"
                + (
                    "; before that, have applications ask it for each id (Hibernate: allocationSize = 1)"
                    if each.increment > 1
                    else ""
                ),
            )

    def end(self, connection: psycopg.Connection[Any]) -> IdsEnd | None:
        """Return a report if a sequence ends before the range of its column's type, or is near its end; else None."""
        for each in self._find(connection):
            room = min(each.maximum, _LARGEST.get(each.column_type, _BIGGEST))
            given = self._given_out(connection, each)
            last = f"; {given:,} are given out" if given is not None else ""
            column = f"{self.column} is {each.column_type}"
            evidence = f"{each.name} is AS {each.type} and ends at {each.maximum:,}, {column}{last}"
            if each.maximum < _LARGEST.get(each.column_type, _BIGGEST):
                larger = [f"AS {each.column_type}"] if _LARGEST[each.type] < _LARGEST.get(each.column_type, 0) else []
                clauses = [*larger, "NO MAXVALUE"]
                return IdsEnd(
                    cause=f"the sequence of {self.table} ends before its column does: every INSERT is refused then",
                    evidence=evidence,
                    next_step=f"ALTER SEQUENCE {each.name} {' '.join(clauses)}",
                )
            if given is not None and given >= room * _NEAR:
                return IdsEnd(
                    cause=f"the ids of {self.table} are near their end: every INSERT is refused then",
                    evidence=evidence,
                    next_step=self._more_room(each),
                )
        return None

    def _given_out(self, connection: psycopg.Connection[Any], found: _Found) -> int | None:
        """Return the last id that the sequence gave out. If this role may not read the sequence, return the highest id
        in the table, or None if this role may not read the table either."""
        of_sequence = sql.SQL("SELECT last_value FROM {}").format(sql.Identifier(found.schema, found.relation))
        of_table = sql.SQL("SELECT max({}) FROM {}").format(sql.Identifier(self.column), sql.SQL(self.table))
        with suppress(DatabaseAccessDenied), translated():
            row = connection.execute(of_sequence if found.is_readable else of_table).fetchone()
            return row[0] if row is not None else None
        return None

    def _more_room(self, found: _Found) -> str:
        if found.column_type == "bigint":
            return (
                f"TRUNCATE {self.table} RESTART IDENTITY, once nothing is left to deliver and the harvesters are "
                "stopped; see docs/table.md"
            )
        return (
            f"ALTER TABLE {self.table} ALTER {self.column} TYPE bigint; ALTER SEQUENCE {found.name} AS bigint (writers "
            "wait while the table is rewritten: do it while it is small)"
        )

    def _find(self, connection: psycopg.Connection[Any]) -> Sequence[_Found]:
        with translated():
            rows = connection.execute(_FOUND, {"table": self.table, "column": self.column}).fetchall()
        return [_Found(*row) for row in rows]
