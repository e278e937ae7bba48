"""The promises of every writer of a pipeline, checked on each adaptor that has one whose rows can be read back."""

import pytest
from support.pipeline_ends import FileTarget, KafkaTarget, PostgresTarget, own_database

from harvest_lib.pipeline.message import Op, PipelineMessage

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def dsn(stack):
    with own_database(stack) as made:
        yield made


@pytest.fixture(params=["postgres", "kafka", "kafka data", "json_lines", "parquet"])
def target(request, tmp_path):
    fixture = request.getfixturevalue
    match request.param:
        case "postgres":
            made = PostgresTarget(fixture("dsn"))
        case "kafka" | "kafka data":
            content = "data" if "data" in request.param else "envelope"
            made = KafkaTarget(fixture("bootstrap_servers"), fixture("make_topic")(partitions=3), content)
        case kind:
            made = FileTarget(tmp_path / "target", kind)
    yield made
    made.close()


@pytest.fixture
def write(target):
    """Write changes, as (op, id) or (op, id, note), with one writer."""
    writer = target.writer()
    offsets = iter(range(1_000))
    namespace = getattr(target, "topic", "t")

    def written(*changes):
        messages = [
            PipelineMessage(
                op, 1_356_999_300_000, namespace, dict(zip(("id", "note"), data, strict=False)), offset=next(offsets)
            )
            for op, *data in changes
        ]
        writer.write(messages)

    yield written
    writer.close()
    writer.close()


def test_rows_are_there_once_it_returns(target, write):
    write((Op.INSERT, 1, "a"), (Op.INSERT, 2, "b"), (Op.INSERT, 3, None))
    assert target.rows() == {1: "a", 2: "b", 3: None}
    write((Op.UPDATE, 1, "c"), (Op.DELETE, 2))
    assert target.rows() == {1: "c", 3: None}


def test_several_changes_of_one_row_have_the_effect_of_one_after_the_other(target, write):
    write(
        (Op.INSERT, 1, "a"),
        (Op.UPDATE, 1, "b"),
        (Op.INSERT, 2, "x"),
        (Op.DELETE, 2),
        (Op.INSERT, 3, "y"),
        (Op.DELETE, 3),
        (Op.INSERT, 3, "z"),
        (Op.UPDATE, 1, "c"),
    )
    assert target.rows() == {1: "c", 3: "z"}


def test_a_second_time_changes_nothing(target, write):
    changes = [(Op.INSERT, 1, "a"), (Op.UPDATE, 1, "b"), (Op.INSERT, 2, "c"), (Op.DELETE, 2), (Op.DELETE, 9)]
    write(*changes)
    write(*changes)
    assert target.rows() == {1: "b"}


def test_nothing_to_write_is_nothing(target, write):
    writer = target.writer()
    writer.write([])
    writer.write([PipelineMessage(Op.NOOP, 1, "position", {"lsn": "0/1"})])
    writer.close()
    write((Op.INSERT, 1, "a"))
    assert target.rows() == {1: "a"}


def test_another_goes_on(target, write):
    write((Op.INSERT, 1, "a"))
    writer = target.writer()
    writer.write([PipelineMessage(Op.UPDATE, 1, getattr(target, "topic", "t"), {"id": 1, "note": "b"}, offset=9)])
    writer.close()
    assert target.rows() == {1: "b"}
