"""Message ids of a sequenced delivery."""

import time
from collections.abc import Sequence

from harvest_lib.delivery.headers import HeaderMaker, Headers
from harvest_lib.sequencing.message_id import HEADER_NAME, Clock, Flag, new_producer_id, pack


class MessageIds:
    """The message ids under a new producer id: each message gets the next id."""

    def __init__(self) -> None:
        self._producer_id, self._clock = new_producer_id(), Clock(time.time_ns)

    def next(self, flag: Flag) -> bytes:
        """Return the next id."""
        return pack(self._producer_id, self._clock.tick(), flag)

    def native(self, count: int) -> dict[str, int]:
        """Reserve `count` ids. Return the arguments from which `NativeSender.send` makes these ids."""
        return {"producer_id": self._producer_id, "clock": self._clock.ticks(count)}

    def with_headers(self, headers_of: HeaderMaker) -> HeaderMaker:
        """Return a maker that puts the next id in front of all headers, so that it precedes a header of the row with
        the same name."""
        producer, tick = self._producer_id, self._clock.tick

        def make(record_id: int, names: Sequence[str], contents: Sequence[str | None]) -> Headers:
            headers = headers_of(record_id, names, contents)
            headers.insert(0, (HEADER_NAME, pack(producer, tick(), Flag.CONTINUE_TXN)))
            return headers

        return make
