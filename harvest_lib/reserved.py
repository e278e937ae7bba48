"""What records may not name or carry: topics that Kafka keeps for itself, and headers that readers of ours go by.

A header named `harvest` or `message-id` travels like any other. Only a value that would be read as one of ours is not
for a record: readers of `harvest_lib.consume` would wait for an acknowledgement that never comes, and an audit would
count the record as another. Pure, no I/O.
"""

from collections.abc import Sequence

from harvest_lib import provenance

INTERNAL_TOPICS = frozenset(
    {
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    }
)

MESSAGE_ID = "message-id"
"""The header of `harvest_lib.consume.message_id`."""
_ID_BYTES, _VERSION_1, _VARIANT = 16, 0x10, 0x80

HEADERS = frozenset({provenance.HEADER_NAME, MESSAGE_ID})


def misleading_header(names: Sequence[str], contents: Sequence[str | bytes | None]) -> str:
    """Return the name of a header whose value would be read as one of ours, or an empty string."""
    for name, content in zip(names, contents, strict=False):
        if content is None or name not in HEADERS:
            continue
        value = content if isinstance(content, bytes) else content.encode()
        if _is_message_id(value) if name == MESSAGE_ID else _is_origin(value):
            return name
    return ""


def _is_message_id(value: bytes) -> bool:
    """Tell whether a value is a UUID of version 1 and of the variant of RFC 4122."""
    return len(value) == _ID_BYTES and value[6] & 0xF0 == _VERSION_1 and value[8] & 0xC0 == _VARIANT


def _is_origin(value: bytes) -> bool:
    try:
        provenance.split(value)
    except ValueError:
        return False
    return True
