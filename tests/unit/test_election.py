"""What is waited out, and what is not, when a group's members are asked for."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest_lib import election


@pytest.fixture
def answers(monkeypatch):
    """The errors that come before the answer."""
    given = []

    def answer(*_):
        if given:
            raise KafkaException(KafkaError(given.pop(0)))
        return ["a member"]

    monkeypatch.setattr(election, "_members", answer)
    return given


def asked():
    return election.members({"bootstrap.servers": "127.0.0.1:1"}, "g", timeout_seconds=3)


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
