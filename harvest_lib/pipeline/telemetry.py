"""Metrics and health of a pipeline, for `harvest_lib.telemetry.server.Listener` or for a custom registry."""

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
    """Metrics and health of a pipeline. No method blocks on a server: a topic's retention (from Kafka) and the slot's
    state (from Postgres) are queried in the background, at most once a minute."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._watches: dict[str, ProgressWatch] = {}
        self._watching = threading.Lock()

    def readings(self) -> Iterator[Reading]:
        """Yield the present values of the pipeline's metrics."""
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
        """Return a healthy verdict if the pipeline resumes or runs, and has checked its threads within the last minute.
        The state of servers does not matter."""
        turned_at = self._pipeline.turned_at
        if self._pipeline.state not in _AT_WORK or turned_at is None:
            return Verdict(is_healthy=False, reason=f"it is {self._pipeline.state.value}")
        if boot_seconds() - turned_at >= _UNRESPONSIVE_SECONDS:
            return Verdict(is_healthy=False, reason="it has taken no turn for a minute")
        return Verdict(is_healthy=True, reason="it turns")

    def ready(self) -> Verdict:
        """Return a healthy verdict if the pipeline is live (`live`) and no writer has failed."""
        verdict = self.live()
        if not verdict.is_healthy:
            return verdict
        failed = [each.progress.name for each in self._pipeline.writers if each.failure is not None]
        if failed:
            return Verdict(is_healthy=False, reason=f"the writer {failed[0]!r} has failed")
        return Verdict(is_healthy=True, reason=f"it is {self._pipeline.state.value}")

    def progress(self, within_seconds: float) -> Verdict:
        """Return a healthy verdict if every writer that is behind the log has advanced in the last `within_seconds`.

        Time is measured from the first call on, so a listener calls this method every five seconds.
        """
        for name, (position, seconds) in self._stalled().items():
            if seconds >= within_seconds:
                reason = f"the writer {name!r} has stood at {position} for {seconds:.0f} s"
                return Verdict(is_healthy=False, reason=reason)
        return Verdict(is_healthy=True, reason="each writer goes on, or has everything")

    def _stalled(self) -> Mapping[str, tuple[int, float]]:
        """Return for each writer its position, and how many seconds it has been behind the log without advancing."""
        found, end, now = {}, self._pipeline.log_end, boot_seconds()
        with self._watching:
            for name, position in self._positions().items():
                watch = self._watches.setdefault(name, ProgressWatch())
                watch.observe(now, position, waits=end is not None and position < end, age_seconds=None)
                found[name] = position, watch.stalled_seconds
        return found

    def _positions(self) -> Mapping[str, int]:
        """Return for each writer the first offset that it has not acknowledged."""
        return {each.progress.name: each.progress.position for each in self._pipeline.writers}


def _of_slot(pipeline: str, state: "SlotState") -> Iterator[Reading]:
    """Yield the metrics of a slot. The metric of a size that is None is yielded without a value."""
    label = (pipeline, state.slot)
    yield catalogue.PIPELINE_SLOT_STATUS, {(*label, each): float(each == state.status) for each in _STATUSES}
    for metric, size in (
        (catalogue.PIPELINE_SLOT_RETAINED, state.retained_bytes),
        (catalogue.PIPELINE_SLOT_SAFE, state.safe_bytes),
    ):
        yield metric, {label: float(size)} if size is not None else {}
