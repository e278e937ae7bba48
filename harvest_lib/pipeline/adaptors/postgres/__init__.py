"""`postgres`: tables, copied and then followed by logical decoding (read), or written to in bulk (write)."""

from harvest_lib.pipeline.adaptors import Adaptor, Side
from harvest_lib.pipeline.adaptors.postgres.options import PostgresReading, PostgresWriting
from harvest_lib.pipeline.adaptors.postgres.reader import PostgresReader
from harvest_lib.pipeline.adaptors.postgres.writer import PostgresWriter

ADAPTOR = Adaptor(
    summary="tables of Postgres: copied, then followed as they change; or written to in bulk",
    reads=Side(options=PostgresReading, make=PostgresReader),
    writes=Side(options=PostgresWriting, make=PostgresWriter),
)
