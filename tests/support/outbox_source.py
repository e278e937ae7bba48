"""Streams of the format `outbox`, and a DSN that it takes."""

import json

import pyspark
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.waiting import eventually

HAS_TARGETS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Under `availableNow` Spark reads all that was there at the start, in as many micro-batches as that needs."""

_BEGINNING = "Initializing sources"
_NOT_STARTED = "Python worker failed to connect back"
_STARTS = 5


def without_password(dsn, folder):
    """Return a DSN whose password is in a file."""
    parts = conninfo_to_dict(dsn)
    file = folder / "passwords"
    file.write_text(f"*:*:*:*:{parts.pop('password')}\n")
    file.chmod(0o600)
    return make_conninfo(**parts, passfile=str(file))


class Followed:
    """A stream of an outbox whose micro-batches are collected: the rows of each, by partition."""

    def __init__(self, spark, dsn, checkpoint, **options):
        self.spark, self.dsn, self.checkpoint, self.options = spark, dsn, checkpoint, options
        self.batches = {}
        self.fail_at = None

    def keep(self, frame, number):
        rows = [row.asDict() for row in frame.collect()]
        self.batches.setdefault(number, []).append(rows)
        if self.fail_at == number:
            raise RuntimeError("after the batch, before its commit")

    def start(self, **trigger):
        """Start the query; again, as its owner would, where a busy machine did not start its worker in Spark's 10 s."""
        for _ in range(_STARTS):
            query = self._start(**trigger)
            eventually(lambda: query.status["message"] != _BEGINNING or query.exception(), seconds=120)  # noqa: B023
            if _NOT_STARTED not in str(query.exception()):
                break
        return query

    def _start(self, **trigger):
        frame = self.spark.readStream.format("outbox").options(dsn=self.dsn, **self.options).load()
        query = frame.writeStream.foreachBatch(self.keep).option("checkpointLocation", str(self.checkpoint))
        return query.trigger(**(trigger or {"processingTime": "50 milliseconds"})).start()

    def run(self):
        """Take what there is, and stop."""
        query = self.start(availableNow=True)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def run_until(self, records):
        """Run until so many records came, and stop."""
        query = self.start()
        try:
            eventually(lambda: len(self.ids()) >= records or query.exception())
        finally:
            query.stop()
        assert query.exception() is None

    def rows(self):
        """Return the rows of each batch's last attempt, in order."""
        return [row for number in sorted(self.batches) for row in self.batches[number][-1]]

    def ids(self):
        return [row["id"] for row in self.rows()]

    def offset(self):
        """Return the newest offset that the checkpoint has."""
        newest = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return json.loads(newest.read_text().splitlines()[-1])
