"""The headers of a record in Kafka: the headers of its row, and the header of its origin that harvest adds."""

from collections.abc import Callable, Sequence
from uuid import UUID

from harvest_lib.record.header import HEADER_NAME, stamp

Headers = list[tuple[str, str | bytes | None]]
HeaderMaker = Callable[[int, Sequence[str], Sequence[str | None]], Headers]


def header_maker(leader_id: UUID | None) -> HeaderMaker:
    """Return a function that makes the headers of a record from the record's id, header names and header contents. The
    returned function adds the header of the origin, unless `leader_id` is None. It is called for every record.

    The returned function raises ValueError if the numbers of names and contents differ.
    """
    stamped = stamp(leader_id) if leader_id is not None else None

    def make(record_id: int, names: Sequence[str], contents: Sequence[str | None]) -> Headers:
        headers: Headers
        if len(names) == 1 == len(contents):  # the usual case; takes a third of the time
            headers = [(names[0], contents[0])]
        else:
            headers = list(zip(names, contents, strict=True))
        if stamped is not None:
            headers.append((HEADER_NAME, stamped(record_id)))
        return headers

    return make
