"""A driver that may be killed: `stream_driver.py <way> <folder>` writes a stream of files, with the DSN in STREAM_DSN.

The way is `classic` or `connect`: a server, and this process its client.
"""

import os
import sys
from pathlib import Path

from support.outbox_format import FileStream, connected

from harvest_lib.spark.session import spark_session


class _Database:
    def __init__(self, dsn):
        self.dsn = dsn


def main(way, folder):
    folder = Path(folder)
    work = folder / f"work-{os.getpid()}"
    work.mkdir()
    started = connected(work) if way == "connect" else spark_session(jars=[], work_folder=work)
    with started as spark:
        FileStream(spark, _Database(os.environ["STREAM_DSN"]), folder).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
