"""The fields of an outbox in a `defs.yaml`. No field holds a secret: a field names an environment variable, never the
variable's value."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import dagster as dg
from pydantic import Field, ValidationInfo, field_validator, model_validator

from dagster_harvest.alert_settings import AlertSettings
from dagster_harvest.audit_settings import AuditSettings
from dagster_harvest.fields import Described, FolderOrUrl, RelativePath, Unresolved, variable_or_dsn
from dagster_harvest.jobs import Ops, RunTags
from dagster_harvest.writer_settings import SparkWriterSettings
from harvest_lib.errors import ConfigError
from harvest_lib.telemetry.server import parse_address


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

    mode: Literal["run", "external", "drain"] = "run"
    """`run`: a Dagster run harvests, and the supervisor keeps it alive. `external`: `harvest run` harvests outside
    Dagster, and Dagster only observes it. `drain`: materializing the topics harvests until the outbox is empty."""
    runs: int = Field(default=1, ge=1, le=100)
    """Number of runs that each code location keeps alive. Several runs share the shards. Default 1."""
    listen: str | None = None
    """Address `HOST:PORT` of a run's `/metrics`, `/livez`, `/readyz` and `/progress`. Several runs use consecutive
    ports, from this port on. Default: the address in the variable HARVEST_LISTEN; without it a run does not listen."""
    report_every_seconds: float = Field(default=10.0, ge=1)
    """Interval at which a run reports its numbers. Default 10 s."""
    materialize_every_seconds: float = Field(default=45.0, ge=1)
    """Shortest interval between two materializations of a topic. A topic without new records is not materialized.
    Default 45 s: with the 30 s of Dagster's automation sensor, assets follow within 90 s of a commit."""
    heartbeat_every_seconds: float = Field(default=2.0, gt=0)
    """Interval of a run's heartbeats. Default 2 s."""
    stale_after_seconds: float = Field(default=15.0, gt=0)
    """A run without a heartbeat for this time is considered dead. Default 15 s."""
    check_every_seconds: int = Field(default=10, ge=1, le=30)
    """Interval of the supervisor's ticks; Dagster evaluates a sensor at most once in 5 s. Default 10 s."""
    start_within_seconds: float = Field(default=180.0, gt=0)
    """A launched run that has not started after this time is given up. The supervisor reports a run that is queued for
    longer. Default 180 s."""
    first_backoff_seconds: float = Field(default=5.0, gt=0)
    """Delay between a failure and the next run; each further failure doubles the delay. Default 5 s."""
    longest_backoff_seconds: float = Field(default=300.0, gt=0)
    """The longest delay between a failure and the next run. Default 300 s."""
    healthy_after_seconds: float = Field(default=300.0, gt=0)
    """A run that has lived for this time resets the number of failures in a row. Default 300 s."""
    healthy_after_working_seconds: float = Field(default=30.0, gt=0)
    """A run that has led for this time, and in that time delivered records or had no backlog, resets the number too.
    Default 30 s."""
    rotate_after_hours: float | None = Field(default=24.0, gt=0)
    """A run that has lived for this time hands over to a new run, so that each run's page stays readable. If there are
    several `runs`, another run leads meanwhile. None: a run lives until it is terminated. Default 24 hours."""

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

    business: str = "postgres/{table}"
    """The writer's business table; its schema becomes a separate part. Default `postgres/{table}`."""
    outbox: str = "outbox/{name}_outbox"
    """Default `outbox/{name}_outbox`."""
    topic: str = "kafka/{topic}_topic"
    """Default `kafka/{topic}_topic`."""
    audit: str = "audit/{name}_audit"
    """Default `audit/{name}_audit`."""
    verified: str = "audit/{name}_audit_verified"
    """The asset that proves delivery to downstream assets. Default `audit/{name}_audit_verified`."""
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
    "business": {"name", "table"},
    "outbox": {"name"},
    "archive": {"name"},
    "replay": {"name"},
    "topic": {"name", "topic"},
    "audit": {"name"},
    "verified": {"name"},
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
    """Keys of the assets upstream of the outbox: those that applications write in the same transactions, such as
    `postgres/orders`, or those that the writer reads. Default none."""
    daemon: DaemonSettings = DaemonSettings()
    """The run that harvests, and how it is kept alive."""
    thresholds: Thresholds = Thresholds()
    """Limits of the backlog, from which checks warn or fail."""
    audit: AuditSettings | None = AuditSettings()
    """`null`: no audit, with its assets, checks, job and schedule."""
    quality: bool | None = None
    """True: the checks `schema` and `expectations`, which need the extras `quality` and `spark`. False: without these
    checks. Default: each of the checks whose packages are installed."""
    archive: ArchiveSettings | None = None
    """Default none: segments are dropped without being archived, after every subscription has delivered them."""
    replays: Sequence[ReplaySettings] = ()
    """New subscriptions whose topics are filled with earlier records. Default none."""
    asset_keys: AssetKeys = AssetKeys()
    """The keys of the assets."""
    alerts: AlertSettings = AlertSettings()
    """The destinations of alerts. Default: the log of the code location."""
    links: Mapping[str, str] = Field(default={})
    """Links on the pages of outbox and topics, such as `Grafana: https://grafana.example.com/d/1`. Default none."""
    op: Ops = Ops()
    """Tags and pools of the ops, for each job."""
    run_tags: RunTags = RunTags()
    """Tags of the runs, for each job, which the run queue and the launcher read."""
    pipes_resource: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", examples=["spark_on_k8s"])
    """The key of a resource of the project: the Pipes client that starts the Spark jobs. Default `<name>_pipes`, which
    starts a subprocess of the run."""

    @field_validator("links")
    @classmethod
    def _http_links(cls, links: Mapping[str, str]) -> Mapping[str, str]:
        if wrong := [name for name, url in links.items() if not url.startswith(("http://", "https://"))]:
            message = f"links.{wrong[0]} is no http or https URL"
            raise ValueError(message)
        return links

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
        keys += [*self.topic_keys, *self.audit_keys]
        if twice := [key.to_user_string() for key, count in Counter(filter(None, keys)).items() if count > 1]:
            message = f"asset_keys gives two assets the key {twice[0]}: let {{topic}} be in the key of topics"
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
    def _topic_of_the_writer(self) -> Self:
        if self.writer is None or self.writer.records is None:
            return self
        if (topic := self.writer.records.topic) is None and len(self.topics) > 1:
            message = f"there are {len(self.topics)} topics: name that of the writer's records as `records.topic`"
            raise ValueError(message)
        if topic is not None and topic not in self.topics:
            message = f"the topic {topic} of the writer's records is not among `topics`: add it there"
            raise ValueError(message)
        return self

    @property
    def upstream_keys(self) -> list[dg.AssetKey]:
        """Return the keys of the assets upstream of the writer, or of the outbox without one."""
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
        """Return the key of the writer's business table; None without one."""
        if self.writer is None or self.writer.table is None:
            return None
        return self.asset_keys.make("business", name=self.name, table=self.writer.table.replace(".", "/"))

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
    def drain_job_name(self) -> str:
        """Return the name of the job that harvests until the outbox is empty."""
        return f"{self.name}_drain"

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

    @property
    def audit_key(self) -> dg.AssetKey:
        """Return the key of the audit."""
        return self.asset_keys.make("audit", name=self.name)

    @property
    def verified_key(self) -> dg.AssetKey:
        """Return the key of the asset that is renewed only if the audit found no fault."""
        return self.asset_keys.make("verified", name=self.name)

    @property
    def audit_keys(self) -> list[dg.AssetKey]:
        """Return the keys of the audit's assets, empty without an audit."""
        return [self.audit_key, self.verified_key] if self.audit is not None else []

    @property
    def audited(self) -> AuditSettings:
        """Return the settings of the audit. Raises ConfigError without an audit."""
        if self.audit is None:
            raise ConfigError(
                f"the outbox {self.name} has no audit", field="audit", next_step="leave `audit: null` out of its YAML"
            )
        return self.audit
