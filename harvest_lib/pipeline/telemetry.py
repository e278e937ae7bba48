"""The numbers and the health of a pipeline, for `harvest_lib.telemetry.server.Listener` or a registry of your own."""

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from harvest_lib.clock import boot_seconds
from harvest_lib.consume.retention import retention_readings
from harvest_lib.pipeline.pipeline import Pipeline, PipelineState
from harvest_lib.telemetry import catalogue
from harvest_lib.telemetry.catalogue import Reading
from harvest_lib.telemetry.health import ProgressWatch, Verdict

if TYPE_CHECKING:
    from harvest_lib.pipeline.adaptors.postgres.slot_watch import SlotState

_AT_WORK = (PipelineState.RESUMING, PipelineState.RUNNING)
_UNRESPONSIVE_SECONDS = 60.0
_STATUSES = ("reserved", "extended", "unreserved", "lost")


class PipelineTelemetry:
    """Waits for no server. The retention of topics that it reads is queried from Kafka beside, once a minute, and the
    slot from Postgres."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._watches: dict[str, ProgressWatch] = {}
        self._watching = threading.Lock()

    def readings(self) -> Iterator[Reading]:
        """Yield the present values of the metrics."""
        pipeline, end, name = self._pipeline, self._pipeline.log_end, self._pipeline.name
        positions = self._positions()
        yield catalogue.PIPELINE_RUNNING, {(name,): float(pipeline.state is PipelineState.RUNNING)}
        if end is None:
            return
        yield from retention_readings(pipeline.retained())
        if (slot := pipeline.slot_state()) is not None:
            yield from _of_slot(name, slot)
        yield catalogue.PIPELINE_LOG_END, {(name,): float(end)}
        yield catalogue.PIPELINE_WRITER_POSITION, {(name, each): float(at) for each, at in positions.items()}
        yield (
            catalogue.PIPELINE_WRITER_BEHIND,
            {(name, each): float(max(0, end - at)) for each, at in positions.items()},
        )
        yield (
            catalogue.PIPELINE_WRITER_AT_WORK,
            {(name, each.progress.name): float(each.at_work) for each in pipeline.writers},
        )
        yield (
            catalogue.PIPELINE_WRITER_STALLED,
            {(name, each): seconds for each, (_, seconds) in self._stalled().items()},
        )

    def live(self) -> Verdict:
        """Return a healthy verdict if it takes turns, whatever the servers do."""
        turned_at = self._pipeline.turned_at
        if self._pipeline.state not in _AT_WORK or turned_at is None:
            return Verdict(is_healthy=False, reason=f"it is {self._pipeline.state.value}")
        if boot_seconds() - turned_at >= _UNRESPONSIVE_SECONDS:
            return Verdict(is_healthy=False, reason="it has taken no turn for a minute")
        return Verdict(is_healthy=True, reason="it turns")

    def ready(self) -> Verdict:
        """Return a healthy verdict if it runs or resumes, and no writer has failed."""
        verdict = self.live()
        if not verdict.is_healthy:
            return verdict
        failed = [each.progress.name for each in self._pipeline.writers if each.failure is not None]
        if failed:
            return Verdict(is_healthy=False, reason=f"the writer {failed[0]!r} has failed")
        return Verdict(is_healthy=True, reason=f"it is {self._pipeline.state.value}")

    def progress(self, within_seconds: float) -> Verdict:
        """Return a healthy verdict if each writer that is behind has gone on within a time.

        A call measures no further back than the first call, so a listener calls every five seconds.
        """
        for name, (position, seconds) in self._stalled().items():
            if seconds >= within_seconds:
                reason = f"the writer {name!r} has stood at {position} for {seconds:.0f} s"
                return Verdict(is_healthy=False, reason=reason)
        return Verdict(is_healthy=True, reason="each writer goes on, or has everything")

    def _stalled(self) -> Mapping[str, tuple[int, float]]:
        """Return the position of each writer, and for how many seconds it has stood there behind the log."""
        found, end, now = {}, self._pipeline.log_end, boot_seconds()
        with self._watching:
            for name, position in self._positions().items():
                watch = self._watches.setdefault(name, ProgressWatch())
                watch.observe(now, position, waits=end is not None and position < end, age_seconds=None)
                found[name] = position, watch.stalled_seconds
        return found

    def _positions(self) -> Mapping[str, int]:
        """Return the first offset that each writer has not acknowledged."""
        return {each.progress.name: each.progress.position for each in self._pipeline.writers}


def _of_slot(pipeline: str, state: "SlotState") -> Iterator[Reading]:
    """Yield the metrics of a slot; a size that there is not is left out."""
    label = (pipeline, state.slot)
    yield catalogue.PIPELINE_SLOT_STATUS, {(*label, each): float(each == state.status) for each in _STATUSES}
    for metric, size in (
        (catalogue.PIPELINE_SLOT_RETAINED, state.retained_bytes),
        (catalogue.PIPELINE_SLOT_SAFE, state.safe_bytes),
    ):
        yield metric, {label: float(size)} if size is not None else {}
