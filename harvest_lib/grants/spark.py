"""Rights of a role that writes into the outbox by Spark, in addition to the rights of every writer.

- INSERT on the business tables that it fills, and the use of their sequences
- the ledger of each table that it fills; the role may not change a row of it
- tables of its own in the schema of staging tables
"""

from collections.abc import Sequence

from psycopg import sql

from harvest_lib.outbox.spark_tables import STAGING_SCHEMA
from harvest_lib.outbox.table import OutboxTable

_BODY = """DECLARE sequence text;
BEGIN
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) THEN RETURN; END IF;
IF to_regnamespace({schema_name}) IS NULL THEN
  RAISE WARNING 'the schema % does not exist: run `harvest init --spark`, then this again', {schema_name};
ELSE
  GRANT USAGE, CREATE ON SCHEMA {schema} TO {role};
END IF;
{tables}
END"""

_LEDGER = """IF to_regclass({ledger_name}) IS NULL THEN
  RAISE WARNING 'the table % does not exist: run `harvest init --spark`, then this again', {ledger_name};
ELSE
  GRANT SELECT, INSERT ON {ledger} TO {role};
END IF;"""

_BUSINESS = """{usage}GRANT INSERT ON {table} TO {role};
FOR sequence IN
  SELECT pg_get_serial_sequence({table_name}, attname) FROM pg_attribute
  WHERE attrelid = {table_name}::regclass AND attnum > 0 AND NOT attisdropped
LOOP
  IF sequence IS NOT NULL THEN EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %I', sequence, {name}); END IF;
END LOOP;"""


def spark_script(outbox: OutboxTable, role: str, business: Sequence[OutboxTable]) -> str:
    """Return the SQL that grants the rights. The owner of the tables runs it after the script of `Grants`."""
    names = {"role": sql.Identifier(role), "name": sql.Literal(role)}
    tables: list[sql.Composed] = []
    for each in business:
        usage = sql.Composed([])
        if len(each.parts) > 1:
            usage = sql.SQL("GRANT USAGE ON SCHEMA {} TO {};\n").format(sql.Identifier(each.parts[0]), names["role"])
        tables.append(
            sql.SQL(_BUSINESS).format(usage=usage, table=each.identifier, table_name=sql.Literal(str(each)), **names)
        )
    for ledger in (outbox.batches, *(each.batches for each in business)):
        tables.append(sql.SQL(_LEDGER).format(ledger=ledger.identifier, ledger_name=sql.Literal(str(ledger)), **names))
    body = sql.SQL(_BODY).format(
        schema=sql.Identifier(STAGING_SCHEMA),
        schema_name=sql.Literal(STAGING_SCHEMA),
        tables=sql.SQL("\n").join(tables),
        **names,
    )
    # The body is a quoted literal, not in dollar quotes, which a name could end.
    statement = sql.SQL("DO {}").format(sql.Literal(body.as_string(None))).as_string(None)
    return f"\n-- a writer by Spark: its staging tables, and the ledgers of the tables that it fills\n{statement};\n"
