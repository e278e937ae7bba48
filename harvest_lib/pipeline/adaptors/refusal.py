"""The errors of a bulk that its destination did not take. One message is blamed only where no other can be to blame."""

from collections.abc import Sequence

from harvest_lib.errors import DatabaseUnavailable, MessageRefused


class LostWhileWriting(DatabaseUnavailable):
    """An established connection was lost while messages were written: an outage, or a message that ended it."""


def refusal(by: str, offsets: Sequence[int], *, evidence: str, remedy: str) -> MessageRefused:
    """Return the error. `offsets` lists all messages that may be to blame, `remedy` makes them fit.

    Only for a single message it advises to acknowledge without sending: that would skip a good message among several.
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
