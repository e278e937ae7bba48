"""The table of goharvest's names in the migration page: complete, and each row is held by a test that exists."""

import re
from pathlib import Path

import pytest

from harvest_lib.config import Limits
from harvest_lib.config.spelling import goharvest_name

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "migrate-from-goharvest.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+) \| (.+) \| `(\S+)::(\S+)` \|$", PAGE.split("## goharvest's names")[1], re.MULTILINE)

NAMES = {
    "types": """
        Config DatabaseBinding DatabaseBindingProvider Event EventHandler Harvest KafkaConfigMap KafkaConsumer
        KafkaConsumerProvider KafkaHeader KafkaHeaders KafkaProducer KafkaProducerProvider LeaderAcquired LeaderFenced
        LeaderRefreshed LeaderRevoked Limits MeterRead NeliProvider OutboxRecord State
    """,
    "functions": """
        Duration Int StringPtr New Unmarshal NewPostgresBinding StandardPostgresBindingProvider
        StandardKafkaConsumerProvider StandardKafkaProducerProvider StandardNeliProvider
    """,
    "methods": """
        SetDefaults String Validate Mark Purge Reset Dispose Start Stop Await State IsLeader LeaderID InFlightRecords
        InFlightRecordKeys SetEventHandler Produce Events Stats
    """,
    "fields": """
        baseKafkaConfig producerKafkaConfig leaderTopic leaderGroupID dataSource outboxTable limits name Scribe
        logging.level ID CreateTime KafkaTopic KafkaKey KafkaValue KafkaHeaders LeaderID
    """,
    "states and words": """
        Created Running Stopping Stopped reaper pump ReceiveDeadline leaderID inFlightRecords inFlightKeys forceRemark
    """,
    "steps": "A1 A2 A3 A4 A5 A6 A7 A8 A9 B1 B2 B3 B4 B5",
}


def test_each_row_names_a_test_that_there_is():
    assert len(ROWS) > 60
    missing = [
        f"{module}::{name}"
        for _, _, module, name in ROWS
        if not (TESTS / module).is_file() or f"\ndef {name}(" not in (TESTS / module).read_text(encoding="utf-8")
    ]
    assert missing == []


@pytest.mark.parametrize("kind", NAMES)
def test_nothing_that_goharvest_documents_is_left_out(kind):
    words = {word for theirs, *_ in ROWS for word in re.findall(r"[\w.]+", theirs)}
    words |= {part for word in words for part in word.split(".")}
    assert [each for each in NAMES[kind].split() if each not in words] == []


def test_each_limit_has_a_row():
    theirs = " ".join(row[0] for row in ROWS)
    assert [name for name in map(goharvest_name, Limits.model_fields) if f"`{name}`" not in theirs] == []


def test_what_is_here_by_that_name_is_a_name_of_ours():
    """The limits' names in Python, as the table has them."""
    ours = " ".join(row[1] for row in ROWS)
    without_effect = {"send_concurrency", "send_buffer"}
    assert [name for name in Limits.model_fields if f"`{name}`" not in ours] == sorted(without_effect, reverse=True)
