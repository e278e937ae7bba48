"""Feeding of a demo: a thread that writes step by step, and the flights of 2013, which most demos are fed with."""

import csv
import io
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence

from harvest_lib.spark.flights.source import published_source


class Feed:
    """A thread that takes step after step, with a pause after each, until it is done or stopped."""

    def __init__(self, name: str, steps: Callable[[], Iterator[float | None]]) -> None:
        """`steps` writes, and yields the seconds to pause: None to pause until it is woken."""
        self._steps = steps
        self._error: BaseException | None = None
        self._is_ending, self._woken = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def done(self) -> bool:
        """True if nothing more comes. Raises the error that kept the rest from coming."""
        has_ended = not self._thread.is_alive()
        self._raise_error()
        return has_ended

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def look(self) -> Sequence[object]:
        """Return the news since the last call, here none. Raises the error that ended it, if any."""
        self._raise_error()
        return ()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        """End the present pause, or the next pause."""
        self._woken.set()

    def stop(self) -> None:
        """Let the step that is taken be the last, and wait for its end."""
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
    """Yield the flights as they are published, by column; None for a value that is not known."""
    with zipfile.ZipFile(published_source()) as archive, archive.open(archive.namelist()[0]) as packed:
        for row in csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8")):
            yield {name: None if value == "NA" else value for name, value in row.items()}
