"""`postgres`: the reader copies tables and then follows their changes by logical decoding; the writer writes to tables
in bulk."""

from harvest_lib.pipeline.adaptors import Adaptor, Side
from harvest_lib.pipeline.adaptors.postgres.options import PostgresReading, PostgresWriting
from harvest_lib.pipeline.adaptors.postgres.reader import PostgresReader
from harvest_lib.pipeline.adaptors.postgres.writer import PostgresWriter

ADAPTOR = Adaptor(
    summary="tables of Postgres: copied, then followed as they change; or written to in bulk",
    reads=Side(options=PostgresReading, make=PostgresReader),
    writes=Side(options=PostgresWriting, make=PostgresWriter),
)
