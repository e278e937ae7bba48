"""A transactional producer that is closed after it was fenced aborts in vain, which is nobody's to read."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from contextlib import suppress
from confluent_kafka import KafkaException, Producer
{imported}
settings = {{"bootstrap.servers": sys.argv[1], "transactional.id": sys.argv[2]}}
first = Producer(settings)
first.init_transactions(30)
first.begin_transaction()
first.produce(sys.argv[2], "a record")
second = Producer(settings)
second.init_transactions(30)
with suppress(KafkaException):
    first.close()
second.close()
print("closed")
"""


@pytest.mark.parametrize(
    ("imported", "warns"), [("", True), ("import harvest_lib.kafka_client", False)], ids=["the client alone", "ours"]
)
def test_a_producer_that_cannot_abort_closes_in_silence(bootstrap_servers, make_topic, imported, warns):
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", SCRIPT.format(imported=imported), bootstrap_servers, make_topic()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    assert done.stdout == "closed\n", done.stderr
    assert ("failed during close" in done.stderr) == warns, done.stderr
