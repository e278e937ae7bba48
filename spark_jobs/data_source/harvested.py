"""What the harvester delivered to topics, as a frame: committed records, each once, with their ids in the outbox.

    Kafka's source, read committed ─► committed by their senders (`sequenced`) ─► ours ─► one copy of each

Promises
- Of an aborted transaction of Kafka's there is nothing, nor of one that is open.
- Of a topic of `delivery: sequenced` there is what `harvest_lib.consume.Sequencer` would return: a record whose sender
  has not acknowledged it (pending, or rolled back) is not there.
- A record of the outbox comes once from a topic, whatever was sent again: its first copy in the log.
- The end of the logs is found out when the frame is made, and stays: a frame that is used twice is the same.

All of it is done by functions of SQL, in which no Python runs for a record, and which spill to disk.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from harvest_lib.record_header import HEADER_NAME
from harvest_lib.sequencing import message_id
from harvest_lib.sequencing.message_id import Flag
from spark_jobs.audit.kafka_side import LEADER, OUTBOX_ID, Topics

_ZERO_CLOCK = "0" * 16
_MESSAGE_ID = f"try_element_at(filter(headers, h -> h.key = '{message_id.HEADER_NAME}'), 1).value"

# Taken apart as in `harvest_lib.sequencing.message_id`. A clock has 64 bits, more than a bigint without a sign: as 16
# digits clocks are in the same order.
_CLOCK = "concat(substr(hexed, 14, 3), substr(hexed, 9, 4), substr(hexed, 1, 8), hex((above DIV 1024) & 15))"
_IS_ID = "length(hexed) = 32 AND substr(hexed, 13, 1) = '1' AND substr(hexed, 17, 1) IN ('8', '9', 'A', 'B')"
_LEADER = r"lower(regexp_replace(hex({}), '^(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.{{12}})$', '$1-$2-$3-$4-$5'))"


def harvested(spark: SparkSession, topics: Sequence[str], *, kafka: Mapping[str, object]) -> DataFrame:
    """Return the records of the harvester's in topics, from where their logs begin to where they end now.

    `kafka` are librdkafka's settings, `bootstrap.servers` at least. The columns are `outbox_id`, `leader` (the id of
    the term that sent the copy), `topic`, `partition`, `offset`, `timestamp`, `key` (text), `value` (bytes) and
    `headers` (names and bytes, without the harvester's own). What other producers wrote, and what was sent without the
    header `harvest`, is left out.

    Raises ConfigError, TopicMissing, KafkaUnavailable or KafkaAccessDenied.
    """
    source = Topics(kafka, topics)
    records = committed(source.raw(spark, source.logs())).where(F.col("stamp").isNotNull())
    first = Window.partitionBy("topic", "outbox_id").orderBy("partition", "offset")
    own = f"filter(headers, h -> h.key NOT IN ('{HEADER_NAME}', '{message_id.HEADER_NAME}'))"
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


def committed(messages: DataFrame) -> DataFrame:
    """Return those messages of Kafka's source that `harvest_lib.consume.Sequencer` would, each partition from its
    beginning on: `topic`, `partition`, `offset` and `headers` are needed."""
    told = (
        messages.withColumn("hexed", F.expr(f"hex({_MESSAGE_ID})"))
        .withColumn("above", F.expr("CAST(conv(substr(hexed, 17, 4), 16, 10) AS int)"))
        .withColumn("clock", F.when(F.expr(_IS_ID), F.expr(_CLOCK)))
        .withColumn("clock", F.when(F.col("clock") != _ZERO_CLOCK, F.col("clock")))  # null: nobody sequences it
        .withColumn("producer", F.when(F.col("clock").isNotNull(), F.expr("substr(hexed, 21)")))
        # What is not sequenced needs no neighbours, so it is not brought to one place.
        .withColumn("spread", F.when(F.col("clock").isNull(), F.col("offset")))
        .withColumn("flag", F.expr("above & 1023"))
    )
    is_continue, is_ack = F.col("flag") == int(Flag.CONTINUE_TXN), F.col("flag") == int(Flag.ACK_TXN)
    log, place = ("topic", "partition", "producer", "spread"), "offset"
    by_producer = Window.partitionBy(*log).orderBy(place)
    before = by_producer.rowsBetween(Window.unboundedPreceding, -1)
    # An acknowledgement goes back to its clock, unless it is the last one again.
    last_ack = F.last(F.when(is_ack, F.col("clock")), ignorenulls=True).over(before)
    sets = is_ack & (last_ack.isNull() | (last_ack != F.col("clock")))
    told = told.withColumn("era", F.count(F.when(sets, 1)).over(by_producer))
    in_era = Window.partitionBy(*log, "era").orderBy(place)
    stands = F.max(F.when(~is_continue, F.col("clock"))).over(in_era.rowsBetween(Window.unboundedPreceding, -1))
    told = told.withColumn("acknowledged", stands)
    first = F.when(F.col("era") == 0, F.first("clock").over(by_producer))  # a producer begins with its first message
    is_new = (F.col("acknowledged").isNull() | (F.col("clock") > F.col("acknowledged"))) & (
        first.isNull() | (F.col("clock") >= first)
    )
    told = told.withColumn("is_new", is_new)
    is_new = F.col("is_new")
    settles = is_ack | (~is_continue & is_new)
    told = told.withColumn("settles", settles).withColumn("settled", F.count(F.when(settles, 1)).over(before))
    pending = Window.partitionBy(*log, "settled").orderBy(place)
    newest = F.max(F.when(is_continue, F.col("clock"))).over(pending.rowsBetween(Window.unboundedPreceding, -1))
    end = F.first(F.when(F.col("settles"), F.struct("clock", is_ack.alias("is_ack"))), ignorenulls=True).over(
        pending.rowsBetween(1, Window.unboundedFollowing)
    )
    told = told.withColumn("newest", newest).withColumn("end", end)
    return told.where(_is_committed(is_continue, is_ack, is_new)).select(*messages.columns)


def _is_committed(is_continue: Column, is_ack: Column, is_new: Column) -> Column:
    is_first = is_new & (F.col("newest").isNull() | (F.col("clock") > F.col("newest")))
    acknowledged = F.col("end.is_ack") & (F.col("clock") <= F.col("end.clock"))
    of_a_transaction = is_continue & is_first & F.coalesce(acknowledged, F.lit(False))  # noqa: FBT003
    return F.col("clock").isNull() | of_a_transaction | (~is_continue & ~is_ack & is_new)
