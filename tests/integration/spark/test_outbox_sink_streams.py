"""Streams into the outbox: each micro-batch once, whatever becomes of the stream and its checkpoint."""

import json
import os
from pathlib import Path

import pytest

from spark_jobs.outbox_sink import Records, foreach_batch

pytestmark = [pytest.mark.full, pytest.mark.spark]


def write_orders(folder: Path, number: int) -> None:
    lines = [json.dumps({"customer": f"c{i % 7}", "n": number * 10 + i}) for i in range(10)]
    file = folder / f"{number:02}.jsonl"
    file.write_text("\n".join(lines) + "\n")
    os.utime(file, (number, number))  # Spark reads files in the order of their times


class Stream:
    """A stream of files, a file a batch, that ends when it has read them all."""

    def __init__(self, spark, database, folder):
        self.spark, self.database = spark, database
        self.files, self.checkpoint = folder / "files", folder / "checkpoint"
        self.files.mkdir()
        self.write = foreach_batch(
            dsn=database.dsn, stream="orders", records=Records(topic="orders", key="customer", order_by=["n"])
        )

    def run(self, write=None):
        frame = self.spark.readStream.schema("customer string, n int").option("maxFilesPerTrigger", 1)
        started = frame.json(str(self.files)).writeStream.foreachBatch(write or self.write)
        query = started.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def numbers(self):
        return [json.loads(value)["n"] for _, value, _, _ in self.database.records()]


def test_a_stream_that_starts_again_promotes_each_batch_once(spark, database, tmp_path):
    stream = Stream(spark, database, tmp_path)
    for number in range(3):
        write_orders(stream.files, number)

    def and_fail(frame, number):
        stream.write(frame, number)
        if number == 1:
            raise RuntimeError("after the promotion, before the checkpoint")

    with pytest.raises(Exception, match="before the checkpoint"):
        stream.run(and_fail)
    assert stream.numbers() == list(range(20))
    write_orders(stream.files, 3)
    stream.run()
    assert stream.numbers() == list(range(40))
    assert database.ask("SELECT batch FROM outbox_batches ORDER BY promoted_at") == [
        (f"orders:{number}",) for number in range(4)
    ]
    assert database.counts() == {"outbox": 40, "outbox_staging": 0, "outbox_batches": 4}


def test_a_stream_that_lost_its_checkpoint_is_refused(spark, database, tmp_path):
    stream = Stream(spark, database, tmp_path)
    write_orders(stream.files, 0)
    stream.run()
    stream.checkpoint.rename(tmp_path / "lost")
    (stream.files / "00.jsonl").unlink()
    write_orders(stream.files, 1)
    with pytest.raises(Exception, match="orders:0 was promoted before, with other data"):
        stream.run()
    assert stream.numbers() == list(range(10))
