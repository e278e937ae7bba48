"""Answers of Kafka's admin clients are waited for in one place: one that comes too late is an error of Kafka's."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[3]
OTHERS = {
    "harvest_lib/checkpoints/topic.py": 1,  # asks again
    "harvest_lib/kafka_client.py": 1,  # the place
    "harvest_lib/leadership/kafka_probe.py": 1,  # asks while the leader goes on
}


def test_an_answer_is_waited_for_in_one_place():
    found = {}
    for path in [*ROOT.glob("harvest_lib/**/*.py"), *ROOT.glob("*_harvest/**/*.py")]:
        text = path.read_text(encoding="utf-8")
        if "AdminClient" in text and (count := len(re.findall(r"\.result\([^)]", text))):
            found[str(path.relative_to(ROOT))] = count
    assert found == OTHERS, "use `answer_of` of harvest_lib.kafka_client"
