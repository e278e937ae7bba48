"""The formats `outbox` and `harvested`, by way of Spark Connect: the client has neither Java nor a driver."""

import pytest
from support.outbox_format import connected
from support.outbox_source import HAS_TARGETS
from support.spark import java_named
from support.topic_sender import Sender

from harvest_lib.spark.data_source import HarvestedDataSource
from harvest_lib.spark.data_source.harvested import harvested

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with java_named(), connected(tmp_path_factory.mktemp("connect")) as made:
        yield made


def ids(frame):
    return sorted(row.id for row in frame.select("id").collect())


def test_outbox_and_topics_are_read_by_way_of_connect(
    spark, make_outbox, tmp_path, bootstrap_servers, make_topic, monkeypatch
):
    native = make_outbox(size=10, ahead=3)
    native.write(25)
    assert ids(spark.read.format("outbox").options(dsn=native.dsn, shards="2").load()) == list(range(1, 26))
    for taken in (25,) if HAS_TARGETS else (10, 20, 25):
        stream = spark.readStream.format("outbox").options(dsn=native.dsn, maxRecordsPerBatch="10").load()
        query = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
        assert ids(spark.read.parquet(str(tmp_path / "rows"))) == list(range(1, taken + 1))
    with pytest.raises(Exception, match="'none' is no number from 1 to"):
        spark.read.format("outbox").options(dsn=native.dsn, shards="none").load().collect()
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as `builder.remote` does, which was not asked here
    topic = make_topic()
    assert harvested(spark, [topic], kafka={"bootstrap.servers": bootstrap_servers}).count() == 0
    sender = Sender(bootstrap_servers, topic)
    sender.send(7)
    sender.flush()
    spark.dataSource.register(HarvestedDataSource)
    options = {"kafka.bootstrap.servers": bootstrap_servers, "topics": topic}
    assert [row.outbox_id for row in spark.read.format("harvested").options(**options).load().collect()] == [7]
    stream = spark.readStream.format("harvested").options(**options).load().writeStream.format("parquet")
    query = stream.option("checkpointLocation", str(tmp_path / "delivered-checkpoint")).trigger(availableNow=True)
    query.start(str(tmp_path / "delivered")).awaitTermination()
    assert [row.outbox_id for row in spark.read.parquet(str(tmp_path / "delivered")).collect()] == [7]
