"""What the Postgres adaptor writes, and what it refuses by the message's number."""

from dataclasses import replace
from itertools import islice

import pytest
from support.pipelines import Running, Script, declared
from support.waiting import eventually

from harvest_lib.errors import AdaptorError, MessageRefused
from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.message import Op, PipelineMessage

pytestmark = pytest.mark.gate


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ((Op.INSERT, "t", {"id": 1, "nope": 1}), "no column nope"),
        ((Op.INSERT, "t", {"note": "x"}), "needs id"),
        ((Op.DELETE, "t", {"note": "x"}), "needs id"),
        ((Op.INSERT, "t", {"id": "secret"}), "InvalidTextRepresentation"),
        ((Op.INSERT, "t", {"id": 1, "note": "a\0"}), "DataError"),
        ((Op.INSERT, "t", {"id": 1, "note": "a\ud83d"}), "half of a surrogate pair"),
        ((Op.INSERT, "t", {"id": 1, "note": "too long"}), "StringDataRightTruncation"),
        ((Op.COMMAND, "t", {"command": "secret"}), "command"),
    ],
)
def test_what_the_table_does_not_take_names_the_message_and_no_value(source, write, message, says):
    source.connection.execute("ALTER TABLE t ALTER note TYPE varchar(3)")
    with pytest.raises(MessageRefused, match=r"\b7\b") as error:
        write(message)
    assert says in str(error.value)
    assert "secret" not in str(error.value)


def test_a_batch_that_fails_leaves_nothing_behind(source, write):
    source.connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with pytest.raises(MessageRefused, match="take one of 2 messages, from 7 to 8"):
        write((Op.INSERT, "t", {"id": 1}), (Op.INSERT, "other", {"id": "x"}))
    assert source.connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_no_table_and_no_key(source, write):
    with pytest.raises(AdaptorError, match=r"no table public\.nowhere"):
        write((Op.INSERT, "nowhere", {"id": 1}))
    source.connection.execute("CREATE TABLE bare (id int)")
    with pytest.raises(AdaptorError, match=r"identifies a row of public\.bare"):
        write((Op.INSERT, "bare", {"id": 1}))
    with pytest.raises(AdaptorError, match="no column nope"):
        write((Op.INSERT, "bare", {"id": 1}), key={"public.bare": ["nope"]})
    source.connection.execute("CREATE UNIQUE INDEX ON bare (id)")
    write((Op.INSERT, "bare", {"id": 1}), (Op.UPDATE, "bare", {"id": 1}), key={"public.bare": ["id"]})


def test_columns_that_are_not_given_stay_and_emptying_comes_in_its_turn(source, write):
    run = source.connection.execute
    run(
        "CREATE TABLE p (id int PRIMARY KEY, a int NOT NULL, b int DEFAULT 5, c int GENERATED ALWAYS AS (a + 1) STORED)"
    )
    write(
        (Op.INSERT, "p", {"id": 1, "a": 1, "c": 99}),
        (Op.UPDATE, "p", {"id": 1, "b": None}),
        (Op.UPDATE, "p", {"id": 2, "b": 1}),
    )
    write((Op.UPDATE, "p", {"id": 1, "b": 7}))
    assert run("SELECT * FROM p").fetchall() == [(1, 1, 7, 2)]
    write((Op.COMMAND, "p", {"command": "truncate"}), (Op.INSERT, "p", {"id": 3, "a": 3}))
    assert run("SELECT id FROM p").fetchall() == [(3,)]


def test_a_writer_whose_sessions_are_ended_goes_on_with_new_ones(source, tmp_path, caplog):
    side = writing("postgres")
    options = side.options(data_source=source.dsn, key={"public.t": ["id"]})
    script = Script([PipelineMessage(Op.INSERT, 1, "public.t", {"n": 0})], ends=False)
    source.connection.execute("ALTER TABLE t ADD n int")
    declaration = declared(tmp_path, script, {"writer": None})
    declaration = replace(declaration, writers=[replace(declaration.writers[0], open=lambda: side.make(options))])
    ids = iter(range(1_000_000))

    def put(count):
        for number in islice(ids, count):
            script.given.append(PipelineMessage(Op.INSERT, 1, "public.t", {"id": number, "n": number}))

    def written():
        return source.connection.execute("SELECT count(*) FROM t").fetchone()[0]

    script.given.clear()
    put(3)
    running = Running(declaration)
    eventually(lambda: written() == 3, "the first are written")
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'harvest' AND datname = %s"
    for expected in (6, 9):
        source.connection.execute(ended, (source.connection.info.dbname,))
        put(3)
        eventually(lambda: written() == expected, "it goes on")  # noqa: B023
    running.stop()
    assert running.failure is None
    assert {each.getMessage() for each in caplog.records if each.levelname == "WARNING"} == {"writer_waits"}
