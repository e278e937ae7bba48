"""Messages as JSON, for destinations that take bytes: a whole message (`envelope`), or only its data (`data`).

    envelope   {"op":"update","timestamp":1356999300000,"namespace":"public.flights","data":{"id":1}}
    data       {"id":1}

Data is extended JSON, so that decoding an envelope returns the same message.
"""

import json
import re
from collections.abc import Mapping, Sequence
from ctypes import Array, c_int32
from functools import lru_cache
from typing import Literal, TypeAlias

from harvest_lib.errors import MessageRefused
from harvest_lib.native import Pieces, Wrapping
from harvest_lib.pipeline.encoded_messages import PARTS, Head, JoinedMessages
from harvest_lib.pipeline.extended_json import dumps, loads
from harvest_lib.pipeline.logged_messages import LoggedMessages
from harvest_lib.pipeline.message import Op, PipelineMessage

Content: TypeAlias = Literal["envelope", "data"]

JoinedEncodings: TypeAlias = "tuple[Pieces, Array[c_int32]]"
"""The encoded messages of a batch, and for each message the index of its head in the table of the batch's heads."""

_OPS = {each.name.lower(): each for each in Op}
_TIMESTAMPS = 1 << 64
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Surrogates (halves of a character). JSON can contain a lone surrogate, UTF-8 cannot."""
_NAMES = {op: name.encode() for name, op in _OPS.items()}


def encode(message: PipelineMessage, content: Content) -> bytes:
    """Return a message as a line of JSON, without the line feed. Raises MessageRefused."""
    data = dumps(message.data)
    if content == "data":
        if message.op in {Op.DELETE, Op.COMMAND}:
            raise MessageRefused(
                f"message {message.offset}, a {message.op.name.lower()}, cannot be recognized by its data alone",
                evidence=f"namespace {message.namespace}, `content: data`",
                next_step="write envelopes (`content: envelope`), or drop such messages in a transform",
            )
        return data
    return b"%b%b}" % (_before_data(message.op, message.timestamp, message.namespace), data)


def encode_all(messages: Sequence[PipelineMessage], content: Content) -> list[bytes]:
    """Return each message as `encode` does. Raises MessageRefused."""
    if not isinstance(messages, LoggedMessages) or (content == "data" and any(map(_needs_its_op, messages.kinds))):
        return [encode(message, content) for message in messages]
    if content == "data":
        return list(messages.values)
    before = {head: _before_data(PARTS[head[1]][1], head[0], head[2].decode()) for head in messages.kinds}
    return [b"%b%b}" % (before[head], value) for head, value in zip(messages.heads, messages.values, strict=True)]


def encode_joined(
    messages: Sequence[PipelineMessage], content: Content, end: bytes = b""
) -> "list[JoinedEncodings] | None":
    """Return an element per batch, with the same encodings as `encode_all` returns, each followed by `end`. Return None
    if the messages are not in encoded batches, or have to be encoded individually."""
    if not isinstance(messages, LoggedMessages) or messages.joined is None:
        return None
    if content == "data" and any(map(_needs_its_op, messages.kinds)):
        return None
    around: dict[Head, Wrapping] = {}
    for head in messages.kinds:
        timestamp, byte, key = head
        if content == "data":
            around[head] = Wrapping(b"", end)
        else:
            around[head] = Wrapping(_before_data(PARTS[byte][1], timestamp, key.decode()), b"}" + end)
    return [wrapped(part, around) for part in messages.joined]


def wrapped(part: "tuple[JoinedMessages, int, int]", around: Mapping[Head, Wrapping]) -> JoinedEncodings:
    """Return each message of a batch (or of a range in it) inside the wrapping that `around` has for its head. A
    message whose head has no wrapping is left out."""
    batch, begin, end = part
    return batch.rows.wrapped(begin, end, [around.get(head) for head in batch.table])


def _needs_its_op(head: Head) -> bool:
    return PARTS[head[1]][1] in {Op.DELETE, Op.COMMAND}


def _before_data(op: Op, timestamp: int, namespace: str) -> bytes:
    return b'{"op":"%b","timestamp":%d,"namespace":%b,"data":' % (_NAMES[op], timestamp, _quoted(namespace))


@lru_cache(maxsize=1_000)
def _quoted(namespace: str) -> bytes:
    return json.dumps(namespace).encode()


def decode(text: bytes, content: Content, *, timestamp: int, namespace: str) -> PipelineMessage:
    """Return the message in a line of JSON. A line of bare data becomes an insert with `timestamp` and `namespace`.
    Raises MessageRefused."""
    data = loads(text)
    if content == "data":
        return PipelineMessage(Op.INSERT, timestamp, namespace, data)
    match data:
        case {"op": str(name), "timestamp": int(at), "namespace": str(of), "data": dict(inner)} if name in _OPS:
            if 0 <= at < _TIMESTAMPS and not _SURROGATES.search(of):
                return PipelineMessage(_OPS[name], at, of, inner)
    raise MessageRefused(
        "it is JSON, but no message",
        evidence="op, timestamp (milliseconds since 1970), namespace and data are needed",
        next_step="write `content: data` if it is a row",
    )
