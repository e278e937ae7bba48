"""Messages as JSON, for destinations that take bytes: whole, or their data alone.

    envelope   {"op":"update","timestamp":1356999300000,"namespace":"public.flights","data":{"id":1}}
    data       {"id":1}

Data is extended JSON, so what is written as an envelope is read back as the same message.
"""

import json
import re
from functools import lru_cache
from typing import Literal, TypeAlias

from harvest_lib.errors import MessageRefused
from harvest_lib.pipeline.extended_json import dumps, loads
from harvest_lib.pipeline.message import Message, Op

Content: TypeAlias = Literal["envelope", "data"]

_OPS = {each.name.lower(): each for each in Op}
_TIMESTAMPS = 1 << 64
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which JSON may have and UTF-8 has not."""
_NAMES = {op: name.encode() for name, op in _OPS.items()}


def encode(message: Message, content: Content) -> bytes:
    """Return a message as one line of JSON, without its end. Raises MessageRefused."""
    data = dumps(message.data)
    if content == "data":
        if message.op in {Op.DELETE, Op.COMMAND}:
            raise MessageRefused(
                f"message {message.offset}, a {message.op.name.lower()}, cannot be told from others by its data alone",
                evidence=f"namespace {message.namespace}, `content: data`",
                next_step="write envelopes (`content: envelope`), or drop such messages in a transform",
            )
        return data
    return b'{"op":"%b","timestamp":%d,"namespace":%b,"data":%b}' % (
        _NAMES[message.op],
        message.timestamp,
        _quoted(message.namespace),
        data,
    )


@lru_cache(maxsize=1_000)
def _quoted(namespace: str) -> bytes:
    return json.dumps(namespace).encode()


def decode(text: bytes, content: Content, *, timestamp: int, namespace: str) -> Message:
    """Return the message of a line; `timestamp` and `namespace` are those of bare data. Raises MessageRefused."""
    data = loads(text)
    if content == "data":
        return Message(Op.INSERT, timestamp, namespace, data)
    match data:
        case {"op": str(name), "timestamp": int(at), "namespace": str(of), "data": dict(inner)} if name in _OPS:
            if 0 <= at < _TIMESTAMPS and not _SURROGATES.search(of):
                return Message(_OPS[name], at, of, inner)
    raise MessageRefused(
        "it is JSON, but no message",
        evidence="op, timestamp (milliseconds since 1970), namespace and data are needed",
        next_step="say `content: data` if it is a row",
    )
