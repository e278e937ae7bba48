"""Transfer of attributes from an old table to the new table that takes over its name.

The attributes are owner, grants, policies, triggers, comment and sequence.

Promise: each role has exactly the same rights on the new table as it had on the old table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import sql

from harvest_lib.outbox.relocation import migration_queries as queries
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

_FIRING = {"D": "DISABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}
_NAME = "ALTER TABLE {} {}"

Statement = sql.SQL | sql.Composed
_Grant = tuple[bool, str, str, bool, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSwap:
    """The attributes of the old table, and the statements that transfer them to the new table."""

    outbox: OutboxTable
    sequence: OutboxTable
    owner: str
    comment: str | None
    has_transaction_id: bool
    obstacle: str
    row_security: bool
    forced_row_security: bool
    grants: Sequence[_Grant]
    policies: Sequence[str]
    triggers: Sequence[tuple[str, str, str]]

    @classmethod
    def read(cls, connection: psycopg.Connection[Any], outbox: OutboxTable, sequence: OutboxTable) -> Self:
        """Read the attributes from the catalog. Names include a schema only if the current search path requires it."""
        values = {"outbox": str(outbox)}
        with translated():
            state = connection.execute(queries.STATE, values).fetchone()
            grants, policies, triggers = (
                connection.execute(query, values).fetchall()
                for query in (queries.GRANTS, queries.POLICIES, queries.TRIGGERS)
            )
        if state is None:
            raise psycopg.errors.UndefinedTable(str(outbox))
        kind, owner, secured, forced, comment, id_type, identity, transaction_id, stamped = state
        return cls(
            outbox=outbox,
            sequence=sequence,
            owner=owner,
            comment=comment,
            has_transaction_id=transaction_id is not None,
            obstacle=_obstacle(kind, id_type, transaction_id, identity=identity, stamped=stamped),
            row_security=secured,
            forced_row_security=forced,
            grants=grants,
            policies=[row[0] for row in policies],
            triggers=triggers,
        )

    def drop_old(self) -> list[Statement]:
        """Return the statements that drop the triggers of the old table. They must be dropped before the old table is
        attached, since the new table passes its triggers on to segments."""
        return [
            sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(name), self.outbox.identifier)
            for name, _, _ in self.triggers
        ]

    def statements(self) -> list[Statement]:
        """Return the statements that set all attributes on the new table. Run them when the new table has the name of
        the old table."""
        table = self.outbox.identifier
        found: list[Statement] = [
            sql.SQL(queries.OWNER).format(outbox=table, owner=sql.Identifier(self.owner)),
            sql.SQL(queries.OWNED_BY).format(sequence=self.sequence.identifier, outbox=table),
            *self._grants(),
        ]
        if self.comment is not None:
            found.append(sql.SQL("COMMENT ON TABLE {} IS {}").format(table, sql.Literal(self.comment)))
        found += [_verbatim(policy) for policy in self.policies]
        if self.row_security:
            found.append(sql.SQL(_NAME).format(table, sql.SQL("ENABLE ROW LEVEL SECURITY")))
        if self.forced_row_security:
            found.append(sql.SQL(_NAME).format(table, sql.SQL("FORCE ROW LEVEL SECURITY")))
        return [*found, *(_verbatim(definition) for _, definition, _ in self.triggers)]

    def enable_triggers(self) -> list[Statement]:
        """Return the statements that restore the firing mode of each trigger (disabled, REPLICA or ALWAYS). Run them
        when all segments are attached and have the triggers."""
        return [
            sql.SQL("ALTER TABLE {} {} TRIGGER {}").format(
                self.outbox.identifier, sql.SQL(_FIRING[firing]), sql.Identifier(name)
            )
            for name, _, firing in self.triggers
            if firing in _FIRING
        ]

    def _grants(self) -> list[Statement]:
        name = sql.Literal(str(self.outbox))
        found: list[Statement] = [sql.SQL(queries.REVOKE_DEFAULTS).format(name=name)]
        for public, role, privilege, grantable, column in self.grants:
            found.append(
                sql.SQL("GRANT {}{} ON {} TO {}{}").format(
                    sql.SQL(privilege),
                    sql.SQL("") if column is None else sql.SQL(" ({})").format(sql.Identifier(column)),
                    self.outbox.identifier,
                    sql.SQL("PUBLIC") if public else sql.Identifier(role),
                    sql.SQL(" WITH GRANT OPTION" if grantable else ""),
                )
            )
        return found


def _verbatim(statement: str) -> sql.SQL:
    """Return the text of a statement from the server as SQL, unchanged."""
    return sql.SQL(statement)


def _obstacle(kind: str, id_type: str, transaction_id: str | None, *, identity: bool, stamped: bool) -> str:
    if kind != "r":
        return f"it is not an ordinary table (relkind {kind!r})"
    if id_type != "bigint":
        return f"its id is {id_type}, not bigint"
    if identity:
        return "its id is GENERATED … AS IDENTITY, whose sequence cannot be handed over"
    if transaction_id not in {None, "xid8"}:
        return f"it has a column transaction_id of type {transaction_id}"
    if transaction_id is not None and not stamped:
        return "its column transaction_id does not have the default pg_current_xact_id(), or may be NULL"
    return ""
