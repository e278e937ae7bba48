"""Warnings of confluent_kafka when a producer that cannot abort is closed reach nobody."""

import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

pytestmark = pytest.mark.quick

MESSAGES = ("Producer abort_transaction failed during close: ", "Producer flush failed during close: ")


@pytest.mark.parametrize("message", MESSAGES)
def test_the_client_has_this_warning(message):
    """In its compiled part: once it has another, see what `harvest_lib.kafka_client` leaves out."""
    (compiled,) = Path(confluent_kafka.__file__).parent.glob("cimpl*.so")
    assert message.encode() in compiled.read_bytes()


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("action", ["default", "error"])
def test_it_reaches_nobody_once_ours_is_imported(message, action):
    """Wherever the client is used by us: all of it goes by that module."""
    code = f"import warnings, {{}}; warnings.warn({message + 'KafkaError'!r}, RuntimeWarning)"
    ours = run(code.format("harvest_lib.delivery"), action)
    assert ours == (0, ""), ours
    alone = run(code.format("confluent_kafka"), action)
    assert "failed during close" in alone[1]


def test_other_warnings_are_as_they_were():
    code = "import warnings, harvest_lib.delivery; warnings.warn('Producer is another', RuntimeWarning)"
    assert "Producer is another" in run(code, "default")[1]


def run(code, action):
    done = subprocess.run(
        [sys.executable, "-W", f"{action}::RuntimeWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr
