"""Errors that are waited out, and others that are not, when a group's members are asked for."""

import json

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest_lib.leadership import group_members
from harvest_lib.leadership.pool import Pool

pytestmark = pytest.mark.quick


@pytest.fixture
def answers(monkeypatch):
    """The errors that come before the answer."""
    given = []

    def answer(*_):
        if given:
            raise KafkaException(KafkaError(given.pop(0)))
        return ["a member"]

    monkeypatch.setattr(group_members, "_members", answer)
    return given


def asked():
    return group_members.members({"bootstrap.servers": "127.0.0.1:1"}, "g", timeout_seconds=3)


@pytest.mark.parametrize("code", [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_what_passes_is_waited_out(answers, code):
    answers.extend([code, code])
    assert asked() == ["a member"]


def test_a_group_that_nobody_knows_has_no_members(answers):
    answers.append(KafkaError.GROUP_ID_NOT_FOUND)
    assert asked() == []


def test_a_refusal_is_told_at_once(answers):
    answers.append(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        asked()


@pytest.mark.parametrize("trouble", ["", "no", "ü" * 5_000, "x" * 5_000])
@pytest.mark.parametrize("name", ["harvester", "é" * 100, "é" * 5_000])
def test_what_a_member_says_of_itself_is_never_more_than_kafka_takes(name, trouble):
    """A commit with more is refused, and who commits nothing never leads."""
    said = group_members.spoken(Pool(leadership="neli", group="g", process=name), "m-1", trouble)
    assert len(said.encode()) <= 4_096
    assert len(name) > 1_000 or json.loads(said)["member"] == "m-1"
    assert bool(trouble) == ("trouble" in said) or not said
