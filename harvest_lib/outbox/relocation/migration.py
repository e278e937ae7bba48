"""Migration of goharvest's table to a native table, in place, while writers and harvesters keep using it.

Before each step, the catalog shows which steps remain. So if a run is killed at any point, the next run continues it. A
run after the last step does nothing.

1. *column*: adds `transaction_id`, with a default, and rewrites no row. Existing records get the transaction id of this
   step, later records the id of their own transaction.
2. *index*: builds an index on (transaction_id, id) concurrently.
3. *bound*: adds a CHECK that every id is below N as `NOT VALID`; *validate* validates it. N is so high that no id
   reaches it, even if the migration is never finished.
4. *swap*: in a single transaction, the table becomes the first segment of a new table. The new table takes over the
   name, owner, grants, policies, triggers and sequence. No record is read, since the CHECK proves that all records
   belong to the first segment.
5. *jump*: moves the sequence to N, so that the first segment can be dropped later.

Promises
- Steps 1, 3 and 4 lock the table only while they write catalog rows; see `short_locks`.
- No record is lost, and no writer's statement is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox.native_table import (
    DEFAULT_AHEAD,
    DEFAULT_SEGMENT_SIZE,
    beside_statements,
    check_beside,
    check_former_names,
    create_beside,
    segment_of,
    segment_statements,
    shortened,
)
from harvest_lib.outbox.relocation import migration_queries as queries
from harvest_lib.outbox.relocation.table_swap import Statement, TableSwap
from harvest_lib.outbox.segments import segment_queries
from harvest_lib.outbox.segments.creation import ensure_segments, far_end, is_near, planned_end
from harvest_lib.outbox.segments.segment_list import Segments
from harvest_lib.outbox.short_locks import PATIENCE_SECONDS, exclusively, with_short_locks
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

Locking = Literal["short", "none", "concurrent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the migration. `locking` is `short` if the step takes a short lock in a transaction, `none` if it
    delays no other session, and `concurrent` if it delays no other session and cannot run in a transaction."""

    name: str
    statements: Sequence[Statement]
    locking: Locking


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The migration of a table by `harvest migrate`."""

    outbox: OutboxTable
    segment_size: int = DEFAULT_SEGMENT_SIZE
    ahead: int = DEFAULT_AHEAD
    patience_seconds: float = PATIENCE_SECONDS
    after: Callable[[str], None] = lambda _step: None
    """Function that is called after each step, with the name of the step."""

    def run(self, connection: psycopg.Connection[Any]) -> Sequence[str]:
        """Run the remaining steps and return their names. Needs the owner's rights and a connection in autocommit.

        If the table has an attribute that a native table cannot have, changes nothing and raises OutboxTableError.
        Raises DatabaseError if a lock cannot be taken; the next run then continues.
        """
        placed = self.outbox.placed(connection)
        check_beside(connection, placed)
        check_former_names(connection, placed)
        with exclusively(connection, placed, self.patience_seconds):
            return self._run(connection, placed)

    def _run(self, connection: psycopg.Connection[Any], placed: OutboxTable) -> Sequence[str]:
        taken = []
        while remaining := self.remaining(connection):
            step = remaining[0]
            self._take(connection, placed, step)
            taken.append(step.name)
            self.after(step.name)
        if create_beside(connection, placed):
            taken.append("beside")
        done = ensure_segments(
            connection, placed, ahead=self.ahead, patience_seconds=self.patience_seconds, after=self.after
        )
        return [*taken, *(["jump"] if done.jumped else [])]

    def remaining(self, connection: psycopg.Connection[Any]) -> Sequence[Step]:
        """Return the steps that remain up to and including the swap, with their SQL."""
        if self.outbox.kind(connection) == "native":
            return []
        placed = self.outbox.placed(connection)
        swap = self._checked(connection, placed)
        end, validated = planned_end(connection, placed)
        next_id = Segments(placed).next_id(connection)
        steps: list[Step] = []
        if not swap.has_transaction_id:
            steps.append(self._step("column", "short", queries.ADD_COLUMN, outbox=placed.identifier))
        steps += self._index_steps(connection, placed)
        cut = sql.Identifier(segment_queries.CUT)
        if end is not None and is_near(end, next_id):
            steps.append(self._step("unbound", "short", segment_queries.DROP_CUT, segment=placed.identifier, cut=cut))
            end, validated = None, False
        if end is None:
            end = far_end(next_id, self.segment_size)
            names = {"segment": placed.identifier, "cut": cut, "upper": sql.Literal(end)}
            steps.append(self._step("bound", "short", queries.ADD_BOUND, **names))
        if not validated:
            names = {"segment": placed.identifier, "cut": cut}
            steps.append(self._step("validate", "none", segment_queries.VALIDATE_CUT, **names))
        return [*steps, Step(name="swap", locking="short", statements=self._swap(placed, swap, end))]

    def script(self, connection: psycopg.Connection[Any]) -> str:
        """Return the remaining steps, including the jump of the sequence, as a script for psql."""
        placed = self.outbox.placed(connection)
        remaining = self.remaining(connection)
        parts = [_as_script(step) for step in remaining]
        if remaining:
            end, _ = planned_end(connection, placed)
            end = end or far_end(Segments(placed).next_id(connection), self.segment_size)
            sequence = Segments(placed).sequence(connection)
            moved = sql.SQL("SELECT setval({}, greatest({}, last_value), true) FROM {};").format(
                sql.Literal(str(sequence)), sql.Literal(end - 1), sequence.identifier
            )
            parts.append(f"-- jump\n{moved.as_string(None)}\n")
        return "\n".join(parts)

    # -- state

    def _checked(self, connection: psycopg.Connection[Any], placed: OutboxTable) -> TableSwap:
        placed.check_columns(connection)
        placed.check_sequence(connection)
        swap = TableSwap.read(connection, placed, Segments(placed).sequence(connection))
        with translated():
            values = {"outbox": str(placed), "cut": segment_queries.CUT}
            obstacles = [row[0] for row in connection.execute(queries.OBSTACLES, values).fetchall()]
        if obstacles or swap.obstacle:
            raise OutboxTableError(
                f"the table {self.outbox} has attributes that a native table cannot have, or that would lose their "
                "meaning",
                evidence="; ".join([*([swap.obstacle] if swap.obstacle else []), *sorted(obstacles)]),
                next_step="drop or change them first, and recreate them for the native table if possible; nothing was "
                "changed",
            )
        _ = placed.subscriptions, placed.segments  # raises an error if their names would be too long
        return swap

    def _index_steps(self, connection: psycopg.Connection[Any], placed: OutboxTable) -> list[Step]:
        name = shortened(placed.parts[-1], "_from_0_transaction_id_idx")
        index = sql.Identifier(*placed.parts[:-1], name)
        values = {"index": index.as_string(None), "outbox": str(placed)}
        with translated():
            row = connection.execute(queries.INDEX_IS_VALID, values).fetchone()
        if row is not None and row[0]:
            return []
        steps = [self._step("broken index", "concurrent", queries.DROP_INDEX, index=index)] if row is not None else []
        names = {"name": sql.Identifier(name), "outbox": placed.identifier}
        return [*steps, self._step("index", "concurrent", queries.CREATE_INDEX, **names)]

    # -- steps

    def _swap(self, placed: OutboxTable, swap: TableSwap, end: int) -> list[Statement]:
        first, cut = segment_of(placed, 0), sql.Identifier(segment_queries.CUT)
        names = {"outbox": placed.identifier, "first": first.identifier, "cut": cut, "upper": sql.Literal(end)}

        def statement(query: str, **more: sql.Composable) -> sql.Composed:
            return sql.SQL(query).format(**names, **more)

        return [
            statement(segment_queries.LOCK, table=placed.identifier),
            *swap.drop_old(),
            statement(segment_queries.RENAME, segment=placed.identifier, name=sql.Identifier(first.parts[-1])),
            statement(queries.CREATE_PARENT),
            statement(segment_queries.DROP_CUT, segment=placed.identifier),
            statement(queries.DEFAULTS),
            *swap.statements(),
            statement(queries.ATTACH_FIRST),
            statement(segment_queries.DROP_CUT, segment=first.identifier),
            *segment_statements(placed, first=end, count=self.ahead, size=self.segment_size),
            *swap.enable_triggers(),
            *beside_statements(placed),
        ]

    def _take(self, connection: psycopg.Connection[Any], placed: OutboxTable, step: Step) -> None:
        def change() -> None:
            for statement in step.statements:
                connection.execute(statement)

        if step.locking == "short":
            with_short_locks(connection, placed, change, patience_seconds=self.patience_seconds)
        else:
            with translated():
                change()

    def _step(self, name: str, locking: Locking, query: str, /, **names: sql.Composable) -> Step:
        return Step(name=name, locking=locking, statements=[sql.SQL(query).format(**names)])


def _as_script(step: Step) -> str:
    lines = [f"{statement.as_string(None)};" for statement in step.statements]
    if step.locking == "short":
        lines = ["BEGIN;", "SET LOCAL lock_timeout = '200ms'; -- if it fails, run this part again", *lines, "COMMIT;"]
    return "\n".join([f"-- {step.name}", *lines, ""])
