"""Rows that tasks of the data source stage, and their promotion: the attempts that are named, and nothing else."""

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from harvest_lib.spark.errors import BatchConflict, PromotionRefused
from harvest_lib.spark.outbox_sink import Records
from harvest_lib.spark.sink.copying import copy_batches
from harvest_lib.spark.sink.database import Tables, connect
from harvest_lib.spark.sink.plan import checked_plan, make_tables
from harvest_lib.spark.sink.promotion import promote
from harvest_lib.spark.sink.staging_tables import Staged, new_run

pytestmark = pytest.mark.gate

SCHEMA = spark.StructType([spark.StructField("customer", spark.StringType())])


class Write:
    """A write as the driver sees it."""

    def __init__(self, database, name="stream orders"):
        self.dsn, self.name = database.dsn, name
        tables = Tables.named(business=None, outbox="outbox", columns="0")
        with connect(self.dsn) as connection:
            self.plan = checked_plan(connection, tables, Records(topic="t", key="customer", value="customer"), SCHEMA)
            make_tables(connection, self.plan)
            self.run = new_run(connection)

    def stage(self, *rows, partition=0):
        staged = Staged(batch=self.name, run=self.run)
        batches = [pa.record_batch({"customer": [row]}) for row in rows]
        return copy_batches(batches, dsn=self.dsn, plan=self.plan, staged=staged, partition=partition)

    def commit(self, *attempts, batch="orders:0"):
        named = {each.partition: (each.attempt, each.rows) for each in attempts if each.rows}
        with connect(self.dsn) as connection:
            staged = Staged(batch=self.name, run=self.run, named=named, seconds=1.5)
            return promote(connection, batch, None, staged=staged, plan=self.plan)


def keys(database):
    return [key for key, *_ in database.records()]


def staged(database):
    return [name for (name,) in database.ask("SELECT customer FROM outbox_staging_0 ORDER BY customer")]


def test_of_several_attempts_of_a_partition_the_named_one_is_promoted(database):
    write = Write(database)
    write.stage("early", "copy")
    named = write.stage("a", "b")
    write.stage("late")
    other = write.stage("c", partition=2)
    empty = write.stage(partition=1)
    assert (empty.attempt, empty.rows, named.rows) == ("", 0, 2)
    assert write.commit(named, empty, other)[1]
    assert keys(database) == ["a", "b", "c"]
    assert staged(database) == []


def test_a_commit_whose_answer_was_lost_is_not_compared_with_what_is_left(database):
    write = Write(database)
    named = write.stage("a")
    assert write.commit(named)[1]
    assert write.commit(named)[1]
    assert keys(database) == ["a"]


def test_a_run_again_finds_the_batch_promoted_and_one_with_other_data_is_refused(database):
    first, again, other = Write(database), Write(database), Write(database)
    first.commit(first.stage("a", "b"))
    assert not again.commit(again.stage("b", partition=1), again.stage("a"))[1]
    with pytest.raises(BatchConflict):
        other.commit(other.stage("a"))
    assert keys(database) == ["a", "b"]


def test_a_promotion_leaves_what_a_later_run_and_others_have_staged(database):
    dead, mine, later, neighbour = Write(database), Write(database), Write(database), Write(database, "stream other")
    dead.stage("dead")
    attempt = mine.stage("mine")
    waiting = later.stage("later")
    neighbour.stage("neighbour")
    mine.commit(attempt)
    assert staged(database) == ["later", "neighbour"]
    assert later.commit(waiting, batch="orders:1")[1]
    assert keys(database) == ["mine", "later"]
    assert staged(database) == ["neighbour"]


def test_an_attempt_that_is_not_whole_any_more_keeps_the_batch_back(database):
    write = Write(database)
    attempt, other = write.stage("a", "b"), write.stage("c", partition=1)
    database.connection.execute("DELETE FROM outbox_staging_0 WHERE customer = 'b'")
    with pytest.raises(PromotionRefused, match="the tasks name 3 rows; 2 of them are staged"):
        write.commit(attempt, other)
    assert keys(database) == []


def test_the_ledger_has_the_seconds(database):
    write = Write(database)
    entry, _ = write.commit(write.stage("a"))
    assert (entry.staging_seconds, entry.promote_seconds > 0) == (1.5, True)
    assert write.commit(write.stage("a")) == (entry, True)
