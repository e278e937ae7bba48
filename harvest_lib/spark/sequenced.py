"""Committed messages of `delivery: sequenced`, found by SQL as `harvest_lib.consume.Sequencer` finds them.

    with_ids ─► producer, clock and flag of each message ─► decided ─► is it committed, and by which message?
                                                               └─► carried: the first rows of the next reader

No Python runs for a message; windows by producer spill to disk.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from harvest_lib.sequencing import message_id
from harvest_lib.sequencing.message_id import Flag

IDS = ("producer", "clock", "flag")
"""Columns that `with_ids` adds."""

_ZERO_CLOCK = "0" * 16
_MESSAGE_ID = f"try_element_at(filter(headers, h -> h.key = '{message_id.HEADER_NAME}'), 1).value"

# An id has the parts that `harvest_lib.sequencing.message_id` describes. A clock has 64 bits without a sign, too many
# for a bigint. As text of 16 hexadecimal digits clocks have the same order.
_CLOCK = "concat(substr(hexed, 14, 3), substr(hexed, 9, 4), substr(hexed, 1, 8), hex((above DIV 1024) & 15))"
_IS_ID = "length(hexed) = 32 AND substr(hexed, 13, 1) = '1' AND substr(hexed, 17, 1) IN ('8', '9', 'A', 'B')"


def committed(messages: DataFrame) -> DataFrame:
    """Return the messages that `Sequencer` would return. `messages` are rows of Kafka's source, of each partition from
    its beginning on, with the columns `topic`, `partition`, `offset` and `headers`."""
    return decided(with_ids(messages)).where("is_committed").select(*messages.columns)


def with_ids(messages: DataFrame) -> DataFrame:
    """Add the columns `producer`, `clock` and `flag` from the headers; all are null in an unsequenced message."""
    return (
        messages.withColumn("hexed", F.expr(f"hex({_MESSAGE_ID})"))
        .withColumn("above", F.expr("CAST(conv(substr(hexed, 17, 4), 16, 10) AS int)"))
        .withColumn("clock", F.when(F.expr(_IS_ID), F.expr(_CLOCK)))
        .withColumn("clock", F.when(F.col("clock") != _ZERO_CLOCK, F.col("clock")))
        .withColumn("producer", F.when(F.col("clock").isNotNull(), F.expr("substr(hexed, 21)")))
        .withColumn("flag", F.when(F.col("clock").isNotNull(), F.expr("above & 1023")))
        .drop("hexed", "above")
    )


def is_acknowledgement() -> Column:
    """Return a column that is true for a message that only commits other messages."""
    return F.coalesce(F.col("flag") == int(Flag.ACK_TXN), F.lit(False))


def decided(messages: DataFrame) -> DataFrame:
    """Add the columns `is_committed` and `settled_at`, and columns for `carried`. `settled_at` is the offset of the
    message that decided whether the row's message is committed; it is null while the row's message is pending.
    `messages` need the columns topic, partition, offset and IDS."""
    # Unsequenced messages are decided without other messages, so Spark may spread them over tasks.
    verdicts = messages.withColumn("spread", F.when(F.col("clock").isNull(), F.col("offset")))
    is_continue, is_ack = F.col("flag") == int(Flag.CONTINUE_TXN), F.col("flag") == int(Flag.ACK_TXN)
    log, place = ("topic", "partition", "producer", "spread"), "offset"
    by_producer = Window.partitionBy(*log).orderBy(place)
    before = by_producer.rowsBetween(Window.unboundedPreceding, -1)
    # An acknowledgement sets the acknowledged clock back to its own clock, unless it repeats the last acknowledgement.
    last_ack = F.last(F.when(is_ack, F.col("clock")), ignorenulls=True).over(before)
    sets = is_ack & (last_ack.isNull() | (last_ack != F.col("clock")))
    verdicts = verdicts.withColumn("era", F.count(F.when(sets, 1)).over(by_producer))
    in_era = Window.partitionBy(*log, "era").orderBy(place)
    stands = F.max(F.when(~is_continue, F.col("clock"))).over(in_era.rowsBetween(Window.unboundedPreceding, -1))
    verdicts = verdicts.withColumn("acknowledged", stands)
    first = F.when(F.col("era") == 0, F.first("clock").over(by_producer))  # a producer begins with its first message
    is_new = (F.col("acknowledged").isNull() | (F.col("clock") > F.col("acknowledged"))) & (
        first.isNull() | (F.col("clock") >= first)
    )
    verdicts = verdicts.withColumn("is_new", is_new)
    is_new = F.col("is_new")
    settles = is_ack | (~is_continue & is_new)
    verdicts = verdicts.withColumn("settles", settles).withColumn("settled", F.count(F.when(settles, 1)).over(before))
    pending = Window.partitionBy(*log, "settled").orderBy(place)
    newest = F.max(F.when(is_continue, F.col("clock"))).over(pending.rowsBetween(Window.unboundedPreceding, -1))
    # One message settles the pending messages before it. The window's frame is all of its partition: with a frame that
    # begins at the row, Spark would search again for each row.
    settling = F.when(F.col("settles"), F.struct("clock", is_ack.alias("is_ack"), "offset"))
    end = F.max(settling).over(Window.partitionBy(*log, "settled"))
    verdicts = verdicts.withColumn("newest", newest).withColumn("end", end)
    settled_at = F.when(F.col("clock").isNull() | ~is_continue, F.col("offset")).otherwise(F.col("end.offset"))
    is_committed = F.coalesce(_is_committed(is_continue, is_ack, is_new), F.lit(False))
    return verdicts.withColumn("is_committed", is_committed).withColumn("settled_at", settled_at)


def _is_committed(is_continue: Column, is_ack: Column, is_new: Column) -> Column:
    is_first = is_new & (F.col("newest").isNull() | (F.col("clock") > F.col("newest")))
    acknowledged = F.col("end.is_ack") & (F.col("clock") <= F.col("end.clock"))
    of_a_transaction = is_continue & is_first & F.coalesce(acknowledged, F.lit(False))
    return F.col("clock").isNull() | of_a_transaction | (~is_continue & ~is_ack & is_new)


def carried(verdicts: DataFrame, begins: Column) -> DataFrame:
    """Return the rows that the next reader, which begins at the offset `begins`, puts before its own rows.

    They are the pending messages, and for each producer up to two messages that restore the state of this reader: the
    producer's last acknowledgement, and its highest commit since then. Messages that restore the state have offsets
    below 0, and are no records.
    """
    names = [name for name in verdicts.columns if name not in _DECIDED]
    verdicts = verdicts.where(F.col("clock").isNotNull() & (F.col("offset") < begins))
    is_pending = F.col("settled_at").isNull() | (F.col("settled_at") >= begins)
    is_continue, is_ack = F.col("flag") == int(Flag.CONTINUE_TXN), F.col("flag") == int(Flag.ACK_TXN)
    pending = verdicts.where(is_continue & is_pending).select(*names)
    ends = verdicts.groupBy("topic", "partition", "producer").agg(
        F.max_by(F.when(is_ack, F.col("clock")), F.when(is_ack, F.col("offset"))).alias("acknowledgement"),
        F.max(F.when(~is_continue, F.struct("era", "clock"))).getField("clock").alias("committed"),
    )
    marks = [("acknowledgement", Flag.ACK_TXN, -2), ("committed", Flag.OUTSIDE_TXN, -1)]
    for name, flag, offset in marks:
        mark = ends.where(F.col(name).isNotNull()).select(
            *("topic", "partition", "producer"),
            F.col(name).alias("clock"),
            F.lit(int(flag)).alias("flag"),
            F.lit(offset).cast("bigint").alias("offset"),
        )
        pending = pending.unionByName(mark, allowMissingColumns=True)
    return pending


_DECIDED = {
    *("spread", "era", "acknowledged", "is_new", "settles", "settled", "newest", "end"),
    *("is_committed", "settled_at"),
}
