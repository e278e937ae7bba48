"""Health of a harvester: the verdicts of `/livez`, `/readyz`, `/progress`, the alive file and systemd's watchdog."""

from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.harvester.telemetry.sampler import Sampler
from harvest_lib.leadership.kafka_probe import KafkaProbe
from harvest_lib.telemetry.health import Verdict


def live(harvest: Harvest) -> Verdict:
    """Return the verdict on liveness: healthy if the harvester's main loop turns, even if a server is down."""
    if harvest.is_responsive:
        return Verdict(is_healthy=True, reason="it turns")
    if harvest.state is State.RUNNING:
        return Verdict(is_healthy=False, reason="its thread has taken no turn for a minute")
    return Verdict(is_healthy=False, reason=f"it is {harvest.state.value}")


class HarvestHealth:
    """Implementation of `Health` for a harvester. `sampler` reports the backlog."""

    def __init__(self, harvest: Harvest, sampler: Sampler) -> None:
        self._harvest = harvest
        self._sampler = sampler
        self._kafka = KafkaProbe(harvest.config.kafka_settings(for_producer=False))

    def live(self) -> Verdict:
        return live(self._harvest)

    def ready(self) -> Verdict:
        verdict = self.live()
        if not verdict.is_healthy:
            return verdict
        if shards := self._harvest.led_shards:
            leads = "it leads" if self._harvest.config.shards == 1 else f"it leads shards {', '.join(map(str, shards))}"
            return Verdict(is_healthy=True, reason=leads)
        if trouble := self._harvest.election_trouble or self._kafka.trouble():
            return Verdict(is_healthy=False, reason=f"it does not lead, and could not: {trouble}")
        return Verdict(is_healthy=True, reason="it stands by")

    def progress(self, within_seconds: float) -> Verdict:
        seen = self._sampler.seen()
        if seen.sample is None:
            reason = f"the backlog is unknown: {seen.reason}"
            return Verdict(is_healthy=seen.stalled_seconds < within_seconds, reason=reason)
        if seen.sample.records is None:
            return Verdict(is_healthy=True, reason="the subscription was never begun: its backlog is unknown")
        waits = f"{'about ' if seen.sample.is_estimate else ''}{seen.sample.records:,} records wait"
        if seen.stalled_seconds >= within_seconds:
            reason = f"{waits}, and none was delivered for {seen.stalled_seconds:.0f} s"
            return Verdict(is_healthy=False, reason=reason)
        return Verdict(is_healthy=True, reason=waits if seen.sample.records else "nothing waits")
