"""The key barrier by laps: at most one record of a key in a lap, the others put off to later ones. Pure, no I/O."""

from collections.abc import Sequence

from harvest_lib.record import Row

_MOST_PUT_OFF = 20_000
"""Records; beyond, nothing more is read until they have gone."""


class OnePerKey:
    """What may go before the next checkpoint is on disk, which `begin_lap` tells of."""

    def __init__(self) -> None:
        self._sent: set[str] = set()  # keys that have a record since the last checkpoint
        self._waiting: list[Row] = []  # put off, in order
        self._behind: list[Row] = []  # put off in this lap

    def begin(self) -> None:
        """Forget everything: what was put off comes again from the source."""
        self._sent.clear()
        self._waiting, self._behind = [], []

    def begin_lap(self) -> None:
        """Begin a lap: every key may go once more."""
        self._sent.clear()
        self._waiting, self._behind = self._waiting + self._behind, []

    def admit(self, rows: Sequence[Row]) -> list[Row]:
        """Return what may go now: the first of each key among what was put off and then `rows`."""
        waiting, self._waiting = self._waiting, []
        sent, behind = self._sent, self._behind
        admitted = []
        for some in (waiting, rows):
            for row in some:
                key = row[2]
                if key in sent:
                    behind.append(row)
                else:
                    sent.add(key)
                    admitted.append(row)
        return admitted

    @property
    def put_off(self) -> list[int]:
        """Return the ids of what was put off, in order."""
        return [row[0] for row in (*self._waiting, *self._behind)]

    @property
    def is_waiting(self) -> bool:
        """Tell whether something that was put off may go now."""
        return bool(self._waiting)

    @property
    def is_blocked(self) -> bool:
        """Tell whether something waits for the next checkpoint."""
        return bool(self._behind)

    @property
    def is_full(self) -> bool:
        """Tell whether so much was put off that nothing more is to be read."""
        return len(self._waiting) + len(self._behind) > _MOST_PUT_OFF
