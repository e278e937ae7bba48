"""A driver that may be killed: `stream_driver.py <folder>` writes a stream of files, with the DSN in STREAM_DSN."""

import os
import sys
from pathlib import Path

from support.outbox_format import FileStream

from spark_jobs.session import spark_session


class _Database:
    def __init__(self, dsn):
        self.dsn = dsn


def main(folder):
    folder = Path(folder)
    work = folder / f"work-{os.getpid()}"
    work.mkdir()
    with spark_session(jars=[], work_folder=work) as spark:
        FileStream(spark, _Database(os.environ["STREAM_DSN"]), folder).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
