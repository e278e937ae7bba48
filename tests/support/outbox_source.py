"""Streams of the formats `outbox` and `harvested`, and a DSN that the first takes."""

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

    def frame(self):
        return self.spark.readStream.format("outbox").options(dsn=self.dsn, **self.options).load()

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
        query = self.frame().writeStream.foreachBatch(self.keep).option("checkpointLocation", str(self.checkpoint))
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

    def forget_commit(self):
        """Delete the newest entry of the query's commit log, so that Spark repeats that micro-batch."""
        newest = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        return int(newest.name)

    def offset(self):
        """Return the newest offset that the checkpoint has."""
        newest = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return json.loads(newest.read_text().splitlines()[-1])


class FollowedTopics(Followed):
    """A stream of topics."""

    def __init__(self, spark, servers, topics, checkpoint, **options):
        super().__init__(spark, "", checkpoint, **options)
        self.given = {"kafka.bootstrap.servers": servers, "topics": ",".join(topics)}

    def frame(self):
        return self.spark.readStream.format("harvested").options(**self.given, **self.options).load()

    def ids(self):
        return [row["outbox_id"] for row in self.rows()]
