"""The fields of an outbox's audit in a `defs.yaml`."""

import re
import zlib
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from dagster_harvest.fields import Described, RelativePath


class AuditSettings(Described):
    """The audit: committed records against the records in Kafka."""

    engine: Literal["harvest", "spark"] = "harvest"
    """`harvest`: the comparison of `harvest audit`, in the process of the run. `spark`: a Spark job, for logs that are
    too large for a process. Both write the same tables. Default `harvest`."""
    committed: str | None = None
    """A query of the committed records, as for `harvest audit --committed`: outbox id, key, topic. An outbox whose rows
    are deleted on delivery needs it. Default none: the outbox has the committed records. With `spark` it must be empty:
    `arguments` name the business table."""
    module: str = "harvest_lib.spark.audit"
    """With `spark`: the module to run as `python -m`, under Dagster Pipes' subprocess client."""
    arguments: Sequence[str] = ()
    """With `spark`: further arguments of the module, such as `--id-column`. Default none."""
    id_prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,60}$")
    """Prefix of the ids of this outbox's audits; audits with other ids are ignored. Default none: every audit of this
    outbox and all of its topics counts, whichever process ran it."""
    state_folder: RelativePath = None
    """With `spark`: a folder in which audits keep their state, so that the next audit reads only later records. Every
    process that audits must reach the folder. Default none: each audit reads everything."""
    metrics_folder: RelativePath = None
    """The folder of node_exporter's textfile collector, into which audits write their result: `<name>.prom`, or
    `<name>-<topic>.prom` if each topic is audited alone. Default none."""
    by_topic: bool = False
    """True if each topic is a partition of the audit's asset, and is audited alone. Checks judge the last audits of
    all topics together. Default false: an audit reads all topics."""
    allow_empty: bool = False
    """True if an audit that finds no committed record passes. Default false: such an audit fails, since it proves
    nothing."""
    docs_folder: RelativePath = None
    """Folder in which Data Docs are kept, such as a folder that a web server shows. Default none: the check
    `expectations` shows the failed expectations itself."""
    cron: str | None = "H 3 * * *"
    """Schedule, in UTC. `H` in place of the minute is a minute that the name of the outbox determines, so that many
    outboxes are not audited at once. Default between 3 and 4 every night. None: no schedule."""
    warn_after_hours: float = Field(default=26.0, gt=0)
    """Age of the last audit from which Dagster's freshness policy warns. Default 26 hours."""
    fail_after_hours: float = Field(default=50.0, gt=0)
    """Age of the last audit from which Dagster's freshness policy fails. Default 50 hours."""

    @model_validator(mode="after")
    def _of_the_engine(self) -> Self:
        foreign = ("module", "arguments", "state_folder") if self.engine == "harvest" else ("committed",)
        if given := [name for name in foreign if name in self.model_fields_set]:
            other = "spark" if self.engine == "harvest" else "harvest"
            message = f"{given[0]} is of the engine {other}: set `engine: {other}` below `audit`, or leave it out"
            raise ValueError(message)
        return self

    def cron_of(self, name: str) -> str | None:
        """Return the schedule of the outbox of this name, with its own minute in place of `H`."""
        if self.cron is None:
            return None
        return re.sub(r"^\s*H(?=\s)", str(zlib.crc32(name.encode()) % 60), self.cron)
