"""How `harvest pipeline` runs a pipeline and shows messages."""

import json
import re
import signal
from typing import Any

from harvest_lib.cli.terminal import printable
from harvest_lib.pipeline import extended_json
from harvest_lib.pipeline.message import Message
from harvest_lib.pipeline.pipeline import Pipeline

_ENDING = (signal.SIGTERM, signal.SIGINT)


OFFSET_RANGE = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?")


def run_until_stopped(pipeline: Pipeline, *, resume_only: bool = False) -> None:
    def ask_to_stop(*_: object) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # once is enough, and a second one must not interrupt the first
        pipeline.stop()

    for number in _ENDING:
        signal.signal(number, ask_to_stop)
    pipeline.run(resume_only=resume_only)


def message_line(message: Message, *, with_data: bool = False) -> str:
    line = f"{message.offset} {message.mode.name.lower()} {message.op.name.lower()} {printable(message.namespace)}"
    return f"{line} {printable(extended_json.dumps(message.data).decode())}" if with_data else line


def message_json(message: Message) -> dict[str, Any]:
    return {
        "offset": message.offset,
        "op": message.op.name.lower(),
        "mode": message.mode.name.lower(),
        "timestamp": message.timestamp,
        "namespace": message.namespace,
        "data": json.loads(extended_json.dumps(message.data)),
    }
