"""Generates SQL with the minimal grants of each role on an outbox. The owner of the tables runs it.

Promises
- A script first revokes the roles' grants on the outbox's tables, so that it may be run again. Row-level policies
  remain until another run replaces them.
- Nothing is revoked from a role that has the rights of a table's owner: the owner, members of the owner, superusers.
- If a role does not exist, the script skips only the statements for this role, with a warning.
- If row-level security is on, harvester and reader get a policy that shows all rows.
- Writers may insert the columns of a message. They cannot set an id, a mark or a transaction id, and cannot read.
- If a writer has a list of topics, Postgres refuses its rows for other topics, whatever program the writer runs.
- psycopg quotes names and values. No name or value is in a comment, because a line break would end the comment.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, LiteralString

import psycopg
from psycopg import sql

from harvest_lib.config.choices import ReadingMode
from harvest_lib.errors import DatabaseAccessDenied
from harvest_lib.outbox.native_table import beside_statements, shortened
from harvest_lib.outbox.table import OutboxTable
from harvest_lib.postgres.translation import translated

_WRITTEN = ("create_time", "kafka_topic", "kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values")
_LED = ("subscription", "shard", "shards", "source", "epoch", "leader_id")
_SAVED = ("low_watermark", "retention_hold", "checkpoint", "updated_at", "epoch", "leader_id", "leader")
_LISTED = ("subscription", "shard", "id", "kafka_topic", "kafka_key", "reason", "held", "transaction_id")
_RELISTED = ("reason", "held", "retry")

# The script looks up the sequence, because it may have any name.
_SEQUENCE = """EXECUTE format(
  'GRANT USAGE ON SEQUENCE %s TO %I', pg_get_serial_sequence({table}, 'id'), {role}
)"""

_LACKS = """
SELECT CASE WHEN %(columns)s::text[] IS NULL THEN NOT has_table_privilege(to_regclass(%(table)s), %(privilege)s)
ELSE (
  SELECT NOT bool_and(has_column_privilege(attrelid, attnum, %(privilege)s)) FROM pg_attribute
  WHERE attrelid = to_regclass(%(table)s) AND attname = ANY (%(columns)s) AND NOT attisdropped
) END
"""

_THERE = "SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%s)"

_ROLE = """BEGIN
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) THEN
  RAISE WARNING 'the role % does not exist: nothing was granted to it', {quoted}; RETURN;
END IF;
{statements}
END"""

_REVOKE = """IF {owns} THEN
  RAISE NOTICE '% owns %: nothing was taken from it', {quoted}, {regclass};
ELSE
  REVOKE ALL ON {table} FROM {role};
END IF"""

_OWNS = "(SELECT pg_has_role({name}, relowner, 'USAGE') FROM pg_class WHERE oid = {regclass}::regclass)"

_IF_SECURED = """IF (SELECT relrowsecurity FROM pg_class WHERE oid = {regclass}::regclass) THEN
{policy}
  IF EXISTS (SELECT FROM pg_policy WHERE polrelid = {regclass}::regclass AND NOT polpermissive) THEN
    RAISE WARNING 'a restrictive policy on % may hide rows from %: ALTER ROLE % BYPASSRLS shows all', {regclass},
      {quoted}, {quoted};
  END IF;
END IF"""

_IF_EXISTS = """IF to_regclass({regclass}) IS NOT NULL THEN
  {statement};
END IF"""

_OWNER_WRITES = """IF {owns} THEN
  RAISE WARNING '% owns %: no rule by topic holds it back', {quoted}, {regclass};
END IF"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Privileges on a table, or on some of its columns."""

    privileges: tuple[LiteralString, ...]
    table: OutboxTable
    columns: tuple[str, ...] = ()


def harvester_needs(outbox: OutboxTable, mode: ReadingMode) -> list[Need]:
    """Return the privileges that a harvester's role needs on the tables of an outbox."""
    needs = [Need(privileges=("SELECT", "DELETE") if mode.marks else ("SELECT",), table=outbox)]
    if mode.marks:
        needs.append(Need(privileges=("UPDATE",), table=outbox, columns=("leader_id",)))
    if mode.parks_rows:
        needs.append(Need(privileges=("SELECT", "INSERT", "DELETE"), table=outbox.parked))
    # Who marks a native table must see its readers, and settles what a leader with `sequenced` left.
    if mode.keeps_checkpoints or outbox.has_room_for("subscriptions"):
        needs += [
            Need(privileges=("SELECT",), table=outbox.subscriptions),
            Need(privileges=("INSERT",), table=outbox.subscriptions, columns=_LED),
            Need(privileges=("UPDATE",), table=outbox.subscriptions, columns=_SAVED),
        ]
    if not mode.marks:
        needs += [
            Need(privileges=("SELECT", "DELETE"), table=outbox.parked_ids),
            Need(privileges=("INSERT",), table=outbox.parked_ids, columns=_LISTED),
            Need(privileges=("UPDATE",), table=outbox.parked_ids, columns=_RELISTED),
        ]
    return needs


def missing_grants(connection: psycopg.Connection[Any], needs: Collection[Need]) -> list[str]:
    """Return the GRANT statements that the connection's role lacks. Missing tables and columns are skipped."""
    lacking = []
    with translated():
        for need in needs:
            values = {"table": str(need.table), "columns": list(need.columns) or None}
            absent = [
                privilege
                for privilege in need.privileges
                if connection.execute(_LACKS, {**values, "privilege": privilege}).fetchone() == (True,)
            ]
            if absent:
                lacking.append(_grant(", ".join(absent), need.table, connection.info.user, need.columns))
    return [each.as_string(None) for each in lacking]


def require_grants(connection: psycopg.Connection[Any], needs: Collection[Need]) -> None:
    """Raise DatabaseAccessDenied, with the GRANT statements, if the connection's role lacks privileges."""
    if missing := missing_grants(connection, needs):
        raise DatabaseAccessDenied(
            f"{connection.info.user!r} lacks privileges",
            evidence=f"{len(missing)} grants are missing",
            next_step=f"as the owner: {'; '.join(missing)}; or run all that `harvest grants postgres` prints",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """The roles of an outbox, and the script of their grants. A role with an empty name is left out. `writers` maps a
    role to the topics that it may write, None for all topics. `subscriptions` are the subscriptions that the harvester
    may lead; empty for all. `has_column_mapping`: the table has another layout, so writers are left out."""

    outbox: OutboxTable
    mode: ReadingMode
    harvester: str = "harvester"
    reader: str = "reader"
    operator: str = ""
    """The role for the commands `park` and `subscriptions`. It also has the rights of a reader."""
    writers: Mapping[str, Collection[str] | None] = field(default_factory=lambda: {"writer": None})
    subscriptions: Collection[str] = ()
    has_column_mapping: bool = False

    def script(self) -> str:
        """Return the SQL script. The owner of the tables runs it, with the tables' schema in the search path."""
        return "".join(f"{part}\n" for part in self._parts())

    def missing(self, connection: psycopg.Connection[Any]) -> list[str]:
        """Return the roles that do not exist. The script skips them."""
        named = [
            *filter(None, (self.harvester, self.reader, self.operator)),
            *(() if self.has_column_mapping else self.writers),
        ]
        with translated():
            there = {name for (name,) in connection.execute(_THERE, (named,))}
        return [name for name in named if name not in there]

    def _parts(self) -> Iterator[str]:
        yield "-- The minimal privileges of each role on the outbox. Run this as the owner of the tables, after"
        yield "-- `harvest init`; it may be run again. A missing role is skipped with a warning: CREATE ROLE … LOGIN,"
        yield "-- and \\password in psql, so that no log has a password; then run this again."
        yield "BEGIN;"
        if self.mode.marks and self.mode.keeps_checkpoints:
            yield "\n-- the tables for mirrored checkpoints, whatever the layout of the outbox"
            yield from map(_text, beside_statements(self.outbox))
        if self._has_topics:
            yield "\n-- writers by topic; from here on only roles with a policy, and the owner, see and write rows"
            yield _text(_enable(self.outbox))
        if self.subscriptions and self.mode.keeps_checkpoints:
            yield "\n-- the harvester by subscription"
            yield from (_text(_enable(each)) for each in (self.outbox.subscriptions, self.outbox.parked_ids))
        if self.harvester:
            yield "\n-- the harvester"
            yield _text(self._role(self.harvester, self._harvester()))
        for writer, topics in self.writers.items() if not self.has_column_mapping else ():
            yield "\n-- a writer: the columns of a message, and ids from the sequence"
            yield _text(self._role(writer, self._writer(writer, topics)))
        if self.reader:
            yield "\n-- a reader: `harvest status`, `harvest audit`"
            yield _text(self._role(self.reader, self._reader()))
        if self.operator:
            yield "\n-- an operator: `harvest park`, `harvest subscriptions`, and all that a reader may do"
            yield _text(self._role(self.operator, self._operator()))
        yield "COMMIT;"
        if self.mode.reads_segments:
            yield "\n-- Segments are changed by the owner: run `harvest segments ensure`, `rotate --due` and"
            yield "-- `drop` from cron, as the owner."
        if self.mode.keeps_checkpoints:
            yield "\n-- After a failover the harvester needs EXECUTE on pg_read_file(text), which reads any file of the"
            yield "-- server's data folder: grant it then, revoke it afterwards."

    def _tables(self) -> list[OutboxTable]:
        outbox = self.outbox
        beside = [outbox.subscriptions, outbox.parked_ids] if self.mode.keeps_checkpoints else []
        parked = [outbox.parked] if self.mode.parks_rows else []
        segments = [outbox.segments] if self.mode.reads_segments else []
        return [outbox, *parked, *beside, *segments]

    @property
    def _has_topics(self) -> bool:
        return not self.has_column_mapping and any(topics is not None for topics in self.writers.values())

    def _role(self, role: str, grants: Iterator[sql.Composed]) -> sql.Composed:
        """Return the statement of a role: it revokes the role's old grants, then executes `grants`."""
        statements = [sql.SQL(_REVOKE).format(table=each.identifier, **_names(role, each)) for each in self._tables()]
        if len(self.outbox.parts) > 1:
            schema = sql.Identifier(self.outbox.parts[0])
            statements.append(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, sql.Identifier(role)))
        body = sql.SQL(_ROLE).format(
            name=sql.Literal(role),
            quoted=sql.Literal(sql.Identifier(role).as_string(None)),
            statements=sql.SQL("\n").join(sql.SQL("{};").format(each) for each in (*statements, *grants)),
        )
        # The body is a quoted literal, not in dollar quotes, which a name could end.
        return sql.SQL("DO {}").format(sql.Literal(body.as_string(None)))

    def _harvester(self) -> Iterator[sql.Composed]:
        outbox, role = self.outbox, self.harvester
        for need in harvester_needs(outbox, self.mode):
            grant = _grant(", ".join(need.privileges), need.table, role, need.columns)
            yield grant if need.table in self._tables() else _if_exists(need.table, grant)
        yield _sees_all(outbox, role, "FOR ALL")
        if self.mode.parks_rows:
            yield _sees_all(outbox.parked, role, "FOR ALL")
        if not self.mode.keeps_checkpoints:
            if outbox.has_room_for("subscriptions"):
                yield _if_exists(outbox.subscriptions, _sees_all(outbox.subscriptions, role, "FOR ALL"))
            return
        if self.mode.reads_segments:  # `harvest status` lists segments that were detached by hand
            yield _grant("SELECT", outbox.segments, role)
            yield _sees_all(outbox.segments, role, "FOR SELECT")
        if self.subscriptions:
            own = _any("subscription", self.subscriptions)
            for table in (outbox.subscriptions, outbox.parked_ids):
                yield from _policy(table, role, "FOR ALL", using=own)

    def _writer(self, role: str, topics: Collection[str] | None) -> Iterator[sql.Composed]:
        yield _grant("INSERT", self.outbox, role, _WRITTEN)
        yield sql.SQL(_SEQUENCE).format(table=sql.Literal(str(self.outbox)), role=sql.Literal(role))
        if self._has_topics:
            allowed = sql.SQL("true") if topics is None else _any("kafka_topic", topics)
            yield from _policy(self.outbox, role, "FOR INSERT", check=allowed)
        if topics is not None:
            yield sql.SQL(_OWNER_WRITES).format(**_names(role, self.outbox))

    def _reader(self) -> Iterator[sql.Composed]:
        for table in self._tables():
            yield _grant("SELECT", table, self.reader)
            yield _sees_all(table, self.reader, "FOR SELECT")

    def _operator(self) -> Iterator[sql.Composed]:
        outbox, role = self.outbox, self.operator
        changed = "SELECT, INSERT, UPDATE, DELETE"
        changes: dict[OutboxTable, LiteralString] = {outbox: "SELECT"}
        if self.mode.parks_rows:  # `park retry` inserts a record into the outbox again, with its id
            changes |= {outbox: "SELECT, INSERT", outbox.parked: changed}
        if self.mode.keeps_checkpoints:
            changes |= {outbox.subscriptions: changed, outbox.parked_ids: changed}
        for table in self._tables():
            yield _grant(changes.get(table, "SELECT"), table, role)
            yield _sees_all(table, role, "FOR SELECT" if table not in changes else "FOR ALL")


def _text(statement: sql.Composed) -> str:
    return f"{statement.as_string(None)};"


def _grant(privileges: LiteralString, table: OutboxTable, role: str, columns: Collection[str] = ()) -> sql.Composed:
    listed = sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
    return sql.SQL("GRANT {}{} ON {} TO {}").format(
        sql.SQL(privileges),
        listed,
        table.identifier,
        sql.Identifier(role),
    )


def _if_exists(table: OutboxTable, statement: sql.Composed) -> sql.Composed:
    return sql.SQL(_IF_EXISTS).format(regclass=sql.Literal(str(table)), statement=statement)


def _names(role: str, table: OutboxTable) -> dict[str, sql.Composable]:
    names: dict[str, sql.Composable] = {
        "name": sql.Literal(role),
        "role": sql.Identifier(role),
        "quoted": sql.Literal(sql.Identifier(role).as_string(None)),
        "regclass": sql.Literal(str(table)),
    }
    return {**names, "owns": sql.SQL(_OWNS).format(**names)}


def _sees_all(table: OutboxTable, role: str, operations: Literal["FOR ALL", "FOR SELECT"]) -> sql.Composed:
    """Return a statement that creates a policy by which a role sees all rows of a table. If the table's row-level
    security is off, the statement does nothing."""
    policy = sql.SQL("\n").join(
        sql.SQL("  {};").format(each) for each in _policy(table, role, operations, using=sql.SQL("true"))
    )
    return sql.SQL(_IF_SECURED).format(policy=policy, **_names(role, table))


def _enable(table: OutboxTable) -> sql.Composed:
    return sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table.identifier)


def _policy(
    table: OutboxTable,
    role: str,
    operations: Literal["FOR ALL", "FOR SELECT", "FOR INSERT"],
    *,
    using: sql.Composable | None = None,
    check: sql.Composable | None = None,
) -> Iterator[sql.Composed]:
    names = {"policy": sql.Identifier(shortened(role, " of harvest")), "table": table.identifier}
    rule = sql.SQL("USING ({})").format(using) if using else sql.SQL("WITH CHECK ({})").format(check)
    yield sql.SQL("DROP POLICY IF EXISTS {policy} ON {table}").format(**names)
    yield sql.SQL("CREATE POLICY {policy} ON {table} {operations} TO {role} {rule}").format(
        operations=sql.SQL(operations), role=sql.Identifier(role), rule=rule, **names
    )


def _any(column: str, values: Collection[str]) -> sql.Composed:
    listed = sql.SQL(", ").join(map(sql.Literal, values))
    return sql.SQL("{} = ANY (ARRAY[{}]::text[])").format(sql.Identifier(column), listed)
