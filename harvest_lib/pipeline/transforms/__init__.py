"""Transforms: functions that change or drop a message before a writer gets it.

    transforms:
      - pick: [flight, origin, dest]            a built-in transform, see `ready`
      - call: shop.cleaning:without_tests       a custom function, by its import path
        with: {country: NZ}                     keyword arguments besides the message

A dropped message counts as acknowledged. If a function raises, or returns neither a message nor None, the writer's
policy applies: the pipeline or the writer stops, or the message is parked.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from harvest_lib.pipeline.message import Op, PipelineMessage


class Transform(Protocol):
    """A function from a message to a message. The thread of its writer calls it once each time a message is sent."""

    def __call__(self, message: PipelineMessage, /) -> PipelineMessage | None:
        """Return the message or a replacement, or None to drop the message. The function must not modify the message
        itself."""
        ...


class TransformFailed(Exception):
    """A transform raised an exception, or returned an invalid result. `name` is its name for operators."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason


def applied(transforms: Sequence[tuple[str, Transform]], message: PipelineMessage) -> PipelineMessage | None:
    """Return a message after all transforms, in order; None if a transform dropped it. Raises TransformFailed."""
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
    """Return what is wrong with the result of a transform; an empty text for a valid result."""
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
