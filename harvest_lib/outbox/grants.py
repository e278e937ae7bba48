"""What each role needs on an outbox, and nothing more, as SQL for its owner.

Promises
- A script takes away first what the roles were granted on these tables. It may be run again. Rules by row, once made,
  stay until another run replaces them.
- Writers may insert the columns that are theirs to fill. They cannot set an id, a mark or a transaction, nor read.
- With a list of topics a writer's row for another one is refused by Postgres, whatever the writer runs.
- Names and values are quoted by psycopg; none is in a comment, which a line break would end.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, LiteralString

from psycopg import sql

from harvest_lib.outbox.native import beside_statements, shortened, who_leads_statement
from harvest_lib.outbox.table import OutboxTable

Way = Literal["mark", "mark_laps", "laps"]
"""How records are read: marked and purged; the same with checkpoints, exactly once; or only read."""

_WRITTEN = ("create_time", "kafka_topic", "kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values")
_LED = ("subscription", "shard", "shards", "source", "epoch", "leader_id")
_SAVED = ("seen", "holds", "checkpoint", "updated_at", "epoch", "leader_id", "leader")
_LISTED = ("subscription", "shard", "id", "kafka_topic", "kafka_key", "reason", "held")
_RELISTED = ("reason", "held", "retry")

# The sequence may have any name: its own would have to be looked up.
_SEQUENCE = """BEGIN EXECUTE format(
  'GRANT USAGE ON SEQUENCE %s TO %I', pg_get_serial_sequence({table}, {column}), {role}
); END"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """The roles of one outbox. An empty name leaves a role out. `writers` are names with the topics that each may
    write, None for any. `subscriptions` are those that the harvester may lead, none for any. `mapped`: a table of
    another layout, which has writers of its own."""

    outbox: OutboxTable
    way: Way
    harvester: str = "harvester"
    reader: str = "reader"
    writers: Mapping[str, Collection[str] | None] = field(default_factory=lambda: {"writer": None})
    subscriptions: Collection[str] = ()
    parks: bool = True
    mapped: bool = False

    def script(self) -> str:
        """Return the SQL, to be run by the owner of the tables, with their schema in the search path."""
        return "".join(f"{part}\n" for part in self._parts())

    def _parts(self) -> Iterator[str]:
        yield "-- What each role needs on the outbox, and nothing more. Run it as the owner of the tables, once they"
        yield "-- are there (`harvest init`); it may be run again. The roles have to exist: CREATE ROLE … LOGIN, and"
        yield "-- \\password in psql, so that no log has a password."
        yield "BEGIN;"
        if self.way == "mark_laps":
            yield "\n-- where checkpoints are mirrored, whatever the layout of the outbox"
            yield from map(_text, beside_statements(self.outbox))
        yield from self._revoked()
        if self.harvester:
            yield "\n-- the harvester"
            yield from map(_text, self._harvester())
        for writer in self.writers if not self.mapped else ():
            yield "\n-- a writer: what it may fill, and ids from the sequence"
            yield from map(_text, self._writer(writer))
        if self.reader:
            yield "\n-- a reader: `harvest status`, `harvest audit`"
            yield from (_text(_grant("SELECT", table, self.reader)) for table in self._tables())
        yield from self._rules()
        yield "COMMIT;"
        if self.way == "laps" and not self.mapped:
            yield "\n-- Segments are made and dropped by the owner: have `harvest segments ensure` and `drop` run by"
            yield "-- the clock, as the owner. After a failover the harvester asks for EXECUTE on pg_read_file(text),"
            yield "-- by which it could read any file of the server's data folder: grant it then, revoke it afterwards."

    def _tables(self) -> list[OutboxTable]:
        outbox = self.outbox
        beside = [outbox.subscriptions, outbox.set_aside] if self.way != "mark" else []
        parked = [outbox.parked] if self.way == "mark" and self.parks else []
        segments = [outbox.segments] if self.way == "laps" and not self.mapped else []
        return [outbox, *parked, *beside, *segments]

    def _revoked(self) -> Iterator[str]:
        roles = [*filter(None, (self.harvester, self.reader)), *(() if self.mapped else self.writers)]
        if not roles:
            return
        names = sql.SQL(", ").join(map(sql.Identifier, roles))
        yield "\n-- none of them more than what follows"
        for table in self._tables():
            yield _text(sql.SQL("REVOKE ALL ON {} FROM {}").format(table.identifier, names))
        if len(self.outbox.parts) > 1:
            schema = sql.Identifier(self.outbox.parts[0])
            yield _text(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, names))

    def _harvester(self) -> Iterator[sql.Composed]:
        outbox, role = self.outbox, self.harvester
        if self.way == "laps":
            yield _grant("SELECT", outbox, role)
        else:
            yield _grant("SELECT, DELETE", outbox, role)
            yield _grant("UPDATE", outbox, role, ("leader_id",))
        if self.way == "mark":
            if self.parks:
                yield _grant("SELECT, INSERT, DELETE", outbox.parked, role)
            return
        yield _grant("SELECT", outbox.subscriptions, role)
        yield _grant("INSERT", outbox.subscriptions, role, _LED)
        yield who_leads_statement(outbox)
        yield _grant("UPDATE", outbox.subscriptions, role, _SAVED)
        yield _grant("SELECT, DELETE", outbox.set_aside, role)
        yield _grant("INSERT", outbox.set_aside, role, _LISTED)
        yield _grant("UPDATE", outbox.set_aside, role, _RELISTED)

    def _writer(self, role: str) -> Iterator[sql.Composed]:
        yield _grant("INSERT", self.outbox, role, _WRITTEN)
        body = sql.SQL(_SEQUENCE).format(
            table=sql.Literal(str(self.outbox)), column=sql.Literal("id"), role=sql.Literal(role)
        )
        # A literal and not dollars: no name can end it.
        yield sql.SQL("DO {}").format(sql.Literal(body.as_string(None)))

    def _rules(self) -> Iterator[str]:
        """Yield row-level security, where a list was given; everybody who has a grant needs a rule then."""
        if not self.mapped and any(topics is not None for topics in self.writers.values()):
            yield "\n-- writers by topic; from here on who has no rule, other than the owner, sees and writes nothing"
            yield _text(_enable(self.outbox))
            for role, topics in self.writers.items():
                allowed = sql.SQL("true") if topics is None else _any("kafka_topic", topics)
                yield from map(_text, _policy(self.outbox, role, "FOR INSERT", check=allowed))
            if self.harvester:
                yield from map(_text, _policy(self.outbox, self.harvester, "FOR ALL", using=sql.SQL("true")))
            if self.reader:
                yield from map(_text, _policy(self.outbox, self.reader, "FOR SELECT", using=sql.SQL("true")))
        if self.subscriptions and self.way != "mark":
            yield "\n-- the harvester by subscription"
            own = _any("subscription", self.subscriptions)
            for table in (self.outbox.subscriptions, self.outbox.set_aside):
                yield _text(_enable(table))
                if self.harvester:
                    yield from map(_text, _policy(table, self.harvester, "FOR ALL", using=own))
                if self.reader:
                    yield from map(_text, _policy(table, self.reader, "FOR SELECT", using=sql.SQL("true")))


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
