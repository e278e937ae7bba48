"""Tags of runs, and tags and pools of ops, for each job of an outbox."""

from typing import Any, Literal

from pydantic import Field

from dagster_harvest.fields import Described, Tags

Job = Literal["daemon", "audit", "archive", "replay", "load"]

_PRIORITY = {"dagster/priority": "10"}


class OpSettings(Described):
    """The op of a job."""

    tags: Tags = Field(default={}, examples=[{"team": "sales"}])
    """Tags of the op. Default none."""
    pool: str | None = Field(default=None, examples=["spark"])
    """The pool of Dagster in which the op takes a slot while it executes. Default none. An op of the daemon holds its
    slot until the run ends."""


class AuditOpSettings(OpSettings):
    """The op that audits."""

    pool: str | None = "harvest_audits"
    """The pool of Dagster that bounds how many audits execute at once, over all outboxes. Default `harvest_audits`,
    which has the limit that `dagster.yaml` gives to every pool."""


class Ops(Described):
    """The ops of the outbox' jobs."""

    daemon: OpSettings = OpSettings()
    """The op that harvests."""
    audit: AuditOpSettings = AuditOpSettings()
    """The op that audits."""
    archive: OpSettings = OpSettings()
    """The op that archives a segment."""
    replay: OpSettings = OpSettings()
    """The op that fills a subscription."""
    load: OpSettings = OpSettings()
    """The op of the writer."""


class RunTags(Described):
    """Tags of the runs of the outbox' jobs, such as `dagster/priority`, `dagster-k8s/config` and `ecs/cpu`."""

    daemon: Tags = Field(default={}, examples=[{"dagster/priority": "20"}])
    """Tags of the run that harvests. Default `dagster/priority: "10"`, so that it leaves the queue before runs of
    backfills."""
    audit: Tags = Field(default={}, examples=[{"dagster/priority": "-1"}])
    """Tags of the runs that audit. Default none."""
    archive: Tags = Field(default={})
    """Tags of the runs that archive a segment. Default none."""
    replay: Tags = Field(default={})
    """Tags of the runs that fill a subscription. Default none."""
    load: Tags = Field(default={})
    """Tags of the runs of the writer. Default none."""

    def of(self, job: Job) -> dict[str, Any]:
        """Return the tags of a job's runs."""
        return {**(_PRIORITY if job == "daemon" else {}), **getattr(self, job)}
