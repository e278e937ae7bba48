"""Whatever a configuration says, the command line takes it or says what is wrong, where, and never a secret."""

import gc
import io
import logging
import os
import signal
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import typer
from hypothesis import HealthCheck, Phase, given, settings
from support.documents import CANARY, NOWHERE, broken, odd, right, wrong
from support.hypothesis_profiles import examples

from harvest_lib import cli
from harvest_lib.harvester.preflight import kafka
from harvest_lib.kafka_client import topic_partitions

pytestmark = pytest.mark.gate

REFUSED, UNREACHABLE = 3, 5

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
usual = settings(max_examples=examples(gate=50, random=125), suppress_health_check=_CHECKS, phases=_PHASES)
many = settings(usual, max_examples=2_500)

_COMMANDS = typer.main.get_command(cli.app)
"""The commands, which `app` makes again for each call; that takes longer than the call."""
_IMPATIENT = partial(topic_partitions, timeout_seconds=0.01)
"""Nobody answers; a refusal that asks whether Kafka does would wait for ten seconds."""


@pytest.fixture(scope="module", autouse=True)
def _as_before():
    """`harvest run` has the process to itself: signals, logging, the collector and the interpreter's turns."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    root.handlers[:], root.level = handlers, level
    for number, handler in signals.items():
        signal.signal(number, handler)
    gc.set_threshold(*threshold)
    gc.unfreeze()
    sys.setswitchinterval(interval)


def run(contents, variables=()):
    """Run `harvest run` on a file; return its exit code and all that it says. Anything it raises is a failure."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("HARVEST_", "PG"))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reaper.yaml"
        file.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        command = ["harvest", "run", "--no-status", "-f", str(file)]
        with (
            patch.dict(os.environ, {**environment, **dict(variables)}, clear=True),
            patch.object(sys, "argv", command),
            patch.object(cli, "app", _COMMANDS),
            patch.object(kafka, "topic_partitions", _IMPATIENT),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            cli.main()
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    text = "".join(said)
    assert "Traceback" not in text
    return ended.value.code, text


def check_right(document):
    """A document whose fields are right each by itself is taken, or refused for fields that disagree."""
    code, text = run(document.text(), document.variables)
    assert code in (REFUSED, UNREACHABLE), text
    assert code == UNREACHABLE or "`" in text or "nested too deeply" in text or "is not a JSON object" in text, text
    assert CANARY not in text


def check_broken(contents):
    """The place is named, if no field can be."""
    code, text = run(contents, {"HARVEST_DSN": NOWHERE, "HARVEST_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    assert code in (REFUSED, UNREACHABLE), text
    assert code == UNREACHABLE or "reaper.yaml" in text or "KafkaConfig" in text, text


KINDS = {
    "right": (right, check_right),
    "odd": (odd, check_right),
    "broken": (broken, check_broken),
}


@pytest.mark.gate(cases=100)
@pytest.mark.parametrize(("document", "name"), list(wrong()))
def test_each_wrong_value_is_refused_by_name(document, name):
    code, text = run(document.text(), document.variables)
    assert code == REFUSED, text
    assert name.lower() in text.lower(), text
    assert CANARY not in text


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("kind", KINDS)
def test_each_configuration_is_taken_or_refused_by_name(kind):
    documents, check = KINDS[kind]
    usual(given(documents())(check))()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_so_are_ten_thousand(kind):
    documents, check = KINDS[kind]
    many(given(documents())(check))()
