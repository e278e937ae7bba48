"""Errors for a bulk of messages that the destination refused. An error blames a single message only if no other
message can be the cause."""

from collections.abc import Sequence

from harvest_lib.errors import DatabaseUnavailable, MessageRefused


class LostWhileWriting(DatabaseUnavailable):
    """A connection was lost while messages were written. The cause is an outage, or a message that makes the server end
    the connection."""


def refusal(by: str, offsets: Sequence[int], *, evidence: str, remedy: str) -> MessageRefused:
    """Return the error for a bulk that `by` refused. `offsets` are the offsets of all messages that may be the cause.
    `remedy` is the advice that makes such a message acceptable.

    If a single message may be the cause, the error advises to acknowledge that message without sending it. With several
    messages, that advice would skip good messages.
    """
    first, last = offsets[0], offsets[-1]
    if len(offsets) == 1:
        return MessageRefused(
            f"{by} does not take message {first}",
            evidence=evidence,
            next_step=f"show it with `harvest pipeline show {first}`; {remedy}; or acknowledge it without sending: "
            "`harvest pipeline ack`",
        )
    return MessageRefused(
        f"{by} does not take one of {len(offsets)} messages, from {first} to {last}",
        evidence=evidence,
        next_step="acknowledge none of them yet: which one it is shows when each is sent alone",
    )
