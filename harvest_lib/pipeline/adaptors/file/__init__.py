"""`file`: JSON lines or Parquet, written and read."""

from harvest_lib.pipeline.adaptors import Adaptor, Reader, Side, Writer
from harvest_lib.pipeline.adaptors.file.json_lines import JsonLinesReader, JsonLinesWriter
from harvest_lib.pipeline.adaptors.file.options import FileReading, FileWriting
from harvest_lib.pipeline.adaptors.file.parquet import ParquetReader, ParquetWriter


def _reader(options: FileReading) -> Reader:
    return ParquetReader(options) if options.format == "parquet" else JsonLinesReader(options)


def _writer(options: FileWriting) -> Writer:
    return ParquetWriter(options) if options.format == "parquet" else JsonLinesWriter(options)


ADAPTOR = Adaptor(
    summary="JSON lines or Parquet in files",
    reads=Side(options=FileReading, make=_reader),
    writes=Side(options=FileWriting, make=_writer),
)
