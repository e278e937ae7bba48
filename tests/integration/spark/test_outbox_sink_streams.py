"""Streams into the outbox by `foreach_batch`: each micro-batch once, whatever becomes of stream and checkpoint."""

import pytest
from pyspark.sql import functions as F
from support.outbox_format import FileStream
from support.sink import Database

from harvest_lib.spark.outbox_sink import Records, foreach_batch

pytestmark = [pytest.mark.full, pytest.mark.spark]

RECORDS = Records(topic="orders", key="customer", value="value", order_by=["n"])


class Stream(FileStream):
    """A stream of files whose micro-batches are written by a function."""

    def __init__(self, spark, database, folder, through):
        super().__init__(spark, database, folder)
        self.through = through
        self.write = foreach_batch(dsn=database.dsn, stream="orders", records=RECORDS, through=through)

    def numbers(self):
        """Return what was written, in order, which `driver` keeps for each key alone."""
        found = super().numbers()
        return found if self.through == "jdbc" else sorted(found)

    def take(self, write=None):
        frame = self.frame().withColumn("value", F.to_json(F.struct("customer", "n")))
        self.run(frame, foreach=write or self.write)


@pytest.fixture(params=["jdbc", "driver"])
def stream(request, spark, dsn, tmp_path):
    database = Database(dsn, "native")
    yield Stream(spark, database, tmp_path, request.param)
    database.connection.close()


def test_a_stream_that_starts_again_promotes_each_batch_once(stream):
    for number in range(3):
        stream.add(number)

    def and_fail(frame, number):
        stream.write(frame, number)
        if number == 1:
            raise RuntimeError("after the promotion, before the checkpoint")

    with pytest.raises(Exception, match="before the checkpoint"):
        stream.take(and_fail)
    assert stream.numbers() == list(range(20))
    stream.add(3)
    stream.take()
    assert stream.numbers() == list(range(40))
    assert stream.database.ask("SELECT batch FROM outbox_batches ORDER BY promoted_at") == [
        (f"orders:{number}",) for number in range(4)
    ]
    assert {"outbox_staging": 0} | stream.database.counts() == {"outbox": 40, "outbox_staging": 0, "outbox_batches": 4}


def test_a_stream_that_lost_its_checkpoint_is_refused(stream, tmp_path):
    stream.add(0)
    stream.take()
    stream.checkpoint.rename(tmp_path / "lost")
    next(stream.files.iterdir()).unlink()
    stream.add(1)
    with pytest.raises(Exception, match="orders:0 was promoted before, with other data"):
        stream.take()
    assert stream.numbers() == list(range(10))
