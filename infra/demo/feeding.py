"""Input of the demos: a thread that writes step by step, and the flights of 2013, which most demos use."""

import csv
import io
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence

from harvest_lib.spark.flights.source import published_source


class Feed:
    """A thread that executes steps, with a pause after each, until no step is left or it is stopped."""

    def __init__(self, name: str, steps: Callable[[], Iterator[float | None]]) -> None:
        """`steps` returns an iterator. Each step writes, then yields the seconds to pause. None pauses until `wake`."""
        self._steps = steps
        self._error: BaseException | None = None
        self._is_ending, self._woken = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def done(self) -> bool:
        """True if the thread has ended. Raises the error that ended it, if any."""
        has_ended = not self._thread.is_alive()
        self._raise_error()
        return has_ended

    def start(self) -> None:
        """Start the thread, and return at once."""
        self._thread.start()

    def look(self) -> Sequence[object]:
        """Return the results since the last call: none in this class. Raises the error that ended the thread."""
        self._raise_error()
        return ()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        """End the current pause or, if there is none, the next pause."""
        self._woken.set()

    def stop(self) -> None:
        """Make the current step the last step, and wait until the thread has ended."""
        self._is_ending = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for pause in self._steps():
                self._woken.wait(pause)
                self._woken.clear()
                if self._is_ending:
                    return
        except BaseException as error:  # noqa: BLE001 - `look` raises it
            self._error = error


def published_flights() -> Iterator[dict[str, str | None]]:
    """Yield each published flight as a dictionary by column name. An unknown value is None."""
    with zipfile.ZipFile(published_source()) as archive, archive.open(archive.namelist()[0]) as packed:
        for row in csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8")):
            yield {name: None if value == "NA" else value for name, value in row.items()}
