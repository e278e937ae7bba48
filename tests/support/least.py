"""The harvesters of tests under least privilege: as a role that has what `harvest grants postgres` prints, and no more.

Only where the variable says so, see `make test-least`.
"""

import os
import secrets

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest_lib.errors import OutboxTableError
from harvest_lib.outbox import Grants, OutboxTable, create_beside

ROLE = "least_harvester"
_PASSWORD = secrets.token_urlsafe()
_MAKE = """
DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
ALTER ROLE {role} PASSWORD {password}
"""


def limited(dsn, *, outbox_table="outbox", source="auto", delivery="barrier", parking="hold_key", columns=None, **_):
    """Return how the role connects, with its grants on the outbox; `dsn` itself where nothing is limited, or there is
    no outbox. The names are those of settings."""
    if not os.environ.get("TEST_LEAST_PRIVILEGE"):
        return dsn
    table = OutboxTable.parse(outbox_table)
    if conninfo_to_dict(dsn).get("host") != "127.0.0.1":
        return dsn  # no server is asked
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            native = columns is not None or table.kind(connection) == "native"
        except OutboxTableError:
            return dsn
        marks = source == "mark" or (source == "auto" and not native)
        way = ("mark_laps" if delivery in {"transactional", "sequenced"} else "mark") if marks else "laps"
        grants = Grants(
            outbox=table,
            way=way,
            harvester=ROLE,
            reader="",
            writers={},
            parks=parking != "stop",
            mapped=columns is not None,
        )
        if way == "laps":
            create_beside(connection, table)  # as the owner has to, where the outbox has another layout
        role = {"role": sql.Identifier(ROLE), "password": sql.Literal(_PASSWORD)}
        connection.execute(sql.SQL(_MAKE).format(**role))
        connection.execute(grants.script().encode())
    return make_conninfo(dsn, user=ROLE, password=_PASSWORD)
