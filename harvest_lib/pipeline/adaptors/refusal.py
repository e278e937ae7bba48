"""The errors of a bulk that its destination did not take. One message is blamed only where no other can be to blame."""

from collections.abc import Sequence

from harvest_lib.errors import DatabaseUnavailable, MessageRefused


class LostWhileWriting(DatabaseUnavailable):
    """A connection that had been made was lost while messages were written: the server went away, or they ended it."""


def refusal(by: str, offsets: Sequence[int], *, evidence: str, remedy: str) -> MessageRefused:
    """Return it. `offsets` are those of all messages that may be to blame, `remedy` makes them fit.

    To acknowledge without sending is advised of a single message alone: of several, it would leave out a good one.
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
