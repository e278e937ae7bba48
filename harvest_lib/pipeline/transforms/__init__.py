"""Transforms of a message on its way to a writer: functions that change it, or drop it.

    transforms:
      - pick: [flight, origin, dest]            built in, see `ready`
      - call: shop.cleaning:without_tests       a custom function, by its import path
        with: {country: NZ}                     its arguments beside the message

A dropped message counts as acknowledged. A function that raises, or returns neither a message nor None, stops
the pipeline, or by policy has its message parked.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from harvest_lib.pipeline.message import Op, PipelineMessage


class Transform(Protocol):
    """Any function of this form will do. It is called by one thread, once per message and send."""

    def __call__(self, message: PipelineMessage, /) -> PipelineMessage | None:
        """Return the message, or a replacement, or None to drop it. The message itself is not to be changed."""
        ...


class TransformFailed(Exception):
    """A transform raised, or returned an invalid result. `name` is its name in the declaration."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason


def applied(transforms: Sequence[tuple[str, Transform]], message: PipelineMessage) -> PipelineMessage | None:
    """Apply named transforms to a message; None once a transform dropped it. Raises TransformFailed."""
    offset = message.offset
    for name, transform in transforms:
        try:
            result = transform(message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exception that ends the thread would end the writer unnoticed
            raise TransformFailed(name, f"raised {type(error).__name__}: {error}") from error
        if result is None:
            return None
        if complaint := _complaint(result):
            raise TransformFailed(name, f"returned {complaint}")
        message = result
    return message if message.offset == offset else message._replace(offset=offset)


def _complaint(result: object) -> str:
    """Return the fault of a transform's result; empty for a valid result."""
    if type(result) is not PipelineMessage:
        return f"{type(result).__name__}, neither a PipelineMessage nor None"
    if type(result.namespace) is not str or not result.namespace:
        return "a message with a namespace that is no text, or empty"
    if type(result.op) is not Op or type(result.timestamp) is not int:
        return "a message with an op that is no Op, or a timestamp that is no whole number"
    if type(result.data) is not dict and not isinstance(result.data, Mapping):
        return "a message with data that is no mapping"
    return ""


__all__ = ["Transform", "TransformFailed", "applied"]
