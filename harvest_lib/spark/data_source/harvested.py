"""Records that the harvester delivered to topics, as a frame: committed, each once, with their ids in the outbox.

    Kafka's source, read committed ─► committed by their senders (`sequenced`) ─► the harvester's ─► first copy of each

Promises
- Records of an aborted or an open transaction of Kafka are left out.
- A topic of `delivery: sequenced` has the same records as with `harvest_lib.consume.Sequencer`: a record that its
  sender has not acknowledged (pending, or rolled back) is left out.
- A record of the outbox is in the frame once per topic, even if it was sent again. The frame has the first copy in the
  log.
- The ends of the partitions are read when the frame is made, so a frame that is used twice has the same records.

SQL functions do all the work. No Python runs for a record, and large data spills to disk.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from harvest_lib.sequencing import message_id
from harvest_lib.spark.audit.kafka_side import IS_STAMP, LEADER, OUTBOX_ID, SparkTopics
from harvest_lib.spark.sequenced import committed

_LEADER = r"lower(regexp_replace(hex({}), '^(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.{{12}})$', '$1-$2-$3-$4-$5'))"

_IS_MESSAGE_ID = (
    f"h.key = '{message_id.HEADER_NAME}' AND length(h.value) = 16 AND hex(h.value) RLIKE '^.{{12}}1.{{3}}[89AB]'"
)
"""SQL that is true if the header `h` is an id of `harvest_lib.sequencing`. The name is no proof, because a row may have
other headers of this name."""


def harvested(spark: SparkSession, topics: Sequence[str], *, kafka: Mapping[str, object]) -> DataFrame:
    """Return the harvester's records in topics, from the beginnings of the partitions to their present ends.

    `kafka` are librdkafka's settings, `bootstrap.servers` at least. The columns are `outbox_id`, `leader` (the id of
    the term that sent the copy), `topic`, `partition`, `offset`, `timestamp`, `key` (text), `value` (bytes) and
    `headers` (names and bytes, without the two headers that the harvester adds). Records of other producers, and
    records without the header `harvest`, are left out.

    Raises ConfigError, TopicMissing, KafkaUnavailable or KafkaAccessDenied.
    """
    source = SparkTopics(kafka, topics)
    records = committed(source.raw(spark, source.logs())).where(F.col("stamp").isNotNull())
    first = Window.partitionBy("topic", "outbox_id").orderBy("partition", "offset")
    own = f"filter(headers, h -> coalesce(NOT ({IS_STAMP}) AND NOT ({_IS_MESSAGE_ID}), true))"
    return (
        records.withColumn("outbox_id", F.expr(OUTBOX_ID))
        .withColumn("copy", F.row_number().over(first))
        .where(F.col("copy") == 1)
        .select(
            "outbox_id",
            F.expr(_LEADER.format(LEADER)).alias("leader"),
            *("topic", "partition", "offset", "timestamp"),
            F.col("key").cast("string").alias("key"),
            "value",
            F.expr(own).alias("headers"),
        )
    )
