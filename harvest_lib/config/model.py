"""The configuration of a harvester: goharvest's fields, and a few more.

Sources of a value, highest precedence first: a Python argument, an environment variable
(`harvest_lib.config.environment`), a file (`harvest_lib.config.yaml_file`), the default. The two Kafka mappings and the
limits are merged entry by entry. Any other field is replaced as a whole.
"""

import math
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from harvest_lib.config.agreement import disagreements
from harvest_lib.config.choices import FENCED, ReadingMode
from harvest_lib.config.columns import LONGEST_IDENTIFIER_BYTES, ColumnMapping
from harvest_lib.config.data_source import DataSource
from harvest_lib.config.durations import format_duration
from harvest_lib.config.environment import environment_values
from harvest_lib.config.kafka_settings import DELIVERY_TIMEOUTS, SESSION_TIMEOUT, TRANSLATED, KafkaSettings, canonical
from harvest_lib.config.limits import Count, Limits, Policy, Seconds
from harvest_lib.config.problems import Origins, Place, Problem, custom_error, raise_in_validator, unsendable
from harvest_lib.config.settings import Settings, merged, paths, to_field_names
from harvest_lib.config.spelling import goharvest_name
from harvest_lib.config.subscription_name import PATTERN
from harvest_lib.postgres.table_names import name_parts
from harvest_lib.record import INTERNAL_TOPICS, is_legal_topic

_DEFAULT_DATA_SOURCE = "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable"
_DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
_DEFAULT_SESSION_TIMEOUT_SECONDS = 10.0


def _default_session_timeout(checked: Mapping[str, Any]) -> float:
    configured: float | None = checked["base_kafka_config"].milliseconds(SESSION_TIMEOUT)
    return configured if configured is not None else _DEFAULT_SESSION_TIMEOUT_SECONDS


def _default_leader_topic(checked: Mapping[str, Any]) -> str:
    group = checked["leader_group_id"]
    return f"{group}.neli" if group else ""


def default_checkpoint_topic(group: str, subscription: str) -> str:
    """Return the default name of a subscription's checkpoint topic. If names contain dots, two different pairs of group
    and subscription may get the same topic name."""
    return f"{group}.{subscription}.checkpoint" if group else ""


def _default_checkpoint_topic(checked: Mapping[str, Any]) -> str:
    return default_checkpoint_topic(checked["leader_group_id"], checked["subscription"])


def _default_name() -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname() or "localhost")
    return f"{host}_{os.getpid()}_{int(time.time())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """Contents of a configuration file: values by field name, the line of each path, and the problems that were found
    while the file was read."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[Place, int] = field(default_factory=dict)
    problems: Sequence[Problem] = ()


class HarvestConfig(Settings):
    """Configuration of a harvester. Both spellings of a field are accepted, Python's and goharvest's.

    No secret appears in `repr`, `str`, `model_dump`, `redacted()` or errors. Raises ConfigError with all problems.
    """

    base_kafka_config: KafkaSettings = Field(
        default_factory=lambda: KafkaSettings({"bootstrap.servers": _DEFAULT_BOOTSTRAP_SERVERS})
    )
    """`baseKafkaConfig`: librdkafka settings for all clients. Default: bootstrap.servers localhost:9092."""
    producer_kafka_config: KafkaSettings = Field(default_factory=KafkaSettings)
    """`producerKafkaConfig`: librdkafka settings for the producers. They override the base settings. Default none."""
    leadership: Literal["auto", "neli", "postgres", "solo"] = "auto"
    """Leader election: `neli` elects through Kafka, `postgres` by a lock in the database, `solo` trusts that there is a
    single process. `auto` is `postgres` if the source only reads, there is a single shard, and the delivery fences a
    former leader (`transactional`, `sequenced`). In all other cases `auto` is `neli`. Default auto."""
    source: Literal["auto", "mark", "snapshot", "transaction_id"] = "auto"
    """Mode of reading. `mark` marks records and deletes them after delivery. `snapshot` and `transaction_id` only
    read, and need a native table or the setting `columns`. `auto` is `mark` for a table in goharvest's layout, else
    `snapshot`. Default auto."""
    delivery: Literal["auto", "barrier", "pipelined", "transactional", "sequenced"] = "auto"
    """Mode of sending. It decides which records of a key are repeated after a failure. `barrier`: at most the
    last record. `pipelined`: several consecutive records. `transactional`: no record, for readers of committed records;
    it uses Kafka transactions. `sequenced`: no record, for readers with `harvest_lib.consume`; it uses no Kafka
    transactions. `auto` is `barrier` if the source is `mark`, else `transactional`. Default auto."""
    subscription: str = Field(default="default", pattern=PATTERN)
    """Name under which `snapshot` and `transaction_id` store their position; an outbox may have many subscriptions.
    Default `default`."""
    start_from: Literal["beginning", "now"] = "beginning"
    """`startFrom`: the position at which a new subscription begins. Default beginning."""
    parking: Policy = "hold_key"
    """Handling of a record that can never be sent: `hold_key` parks it, and holds later records of the same key and
    topic behind it; `skip` parks only the record itself; `stop` ends the harvester. Default hold_key."""
    leader_group_id: str = ""
    """`leaderGroupID`: the consumer group in which the pool elects its leader. Required, except for
    `leadership: solo`."""
    leader_topic: str = Field(default_factory=_default_leader_topic)
    """`leaderTopic`: the topic of the election. It has a partition for each shard; the owner of the partition leads the
    shard. Default `<leaderGroupID>.neli`."""
    checkpoint_topic: str = Field(default_factory=_default_checkpoint_topic)
    """`checkpointTopic`: the compacted topic in which `transactional` stores its checkpoints. The topic's name is also
    the prefix of the transactional ids. Default `<leaderGroupID>.<subscription>.checkpoint`."""
    data_source: DataSource = Field(default_factory=lambda: DataSource.parse(_DEFAULT_DATA_SOURCE))
    """`dataSource`: the connection string of Postgres. Default: user postgres, database postgres, on localhost:5432,
    without TLS."""
    outbox_table: str = "outbox"
    """`outboxTable`: `table` or `schema.table`, spelled exactly as in Postgres' catalogue. Default `outbox`."""
    keep_segments_seconds: Seconds = Field(default=86_400.0, ge=0)
    """`keepSegments`: how long a closed segment of the native table is retained, even if every subscription has passed
    the segment. A subscription can be rewound to retained segments. Default 24h."""
    max_segment_age_seconds: Seconds = Field(default=86_400.0, ge=0)
    """`maxSegmentAge`: the next segment begins when the first record of the current segment has this age. Thus
    `keepSegments` takes effect on tables with few records too. 0: a segment ends only when its ids are used up. Default
    24h."""
    database_limit_bytes: Count | None = Field(default=None, ge=1)
    """`databaseLimitBytes`: disk space for the outbox's database, in bytes. It is only reported as a metric, so that an
    alert can predict a full disk; the harvester does not enforce it. Default: none, no alert."""
    columns: ColumnMapping | None = None
    """Columns for the parts of a record in a table of another layout: see `ColumnMapping`. Default: the table has the
    native or goharvest's layout."""
    shards: Count = Field(default=1, ge=1, le=1000)
    """Number of shards over which keys are hashed, each with its own leader. All processes of a pool need the same
    number. Default 1."""
    limits: Annotated[Limits, BeforeValidator(Limits.checked)] = Field(default_factory=Limits)
    """Durations, counts and rates: see `Limits`."""
    name: str = Field(default_factory=_default_name, min_length=1)
    """Name of this process in logs. Default: host, process id and start time."""
    create_leader_topic: bool = True
    """`createLeaderTopic`: create the leader topic, with a partition for each shard, if it is missing. Default true."""
    record_header: bool = True
    """`recordHeader`: add the header `harvest` (outbox id, term) to each record; audits need it. Default true."""
    session_timeout_seconds: Seconds = Field(default_factory=_default_session_timeout, ge=0.001, le=3600)
    """`sessionTimeout`: Kafka elects another leader if it receives nothing from the leader's process for this time.
    Must be more than `limits.heartbeatTimeout`. Default: `session.timeout.ms` of the base Kafka config, else 10s."""

    def __init__(self, _file: FileContents | None = None, *, _file_first: bool = False, **arguments: Any) -> None:
        """Merge Python arguments, the environment and a file. Arguments override the environment and the file. The
        environment overrides the file; with `_file_first` the file overrides the environment."""
        file = _file or FileContents()
        environment, variables = environment_values(os.environ, type(self).model_fields)
        if _file_first:
            variables = {path: variable for path, variable in variables.items() if path not in file.lines}
        below = (file.values, environment) if _file_first else (environment, file.values)
        problems = list(file.problems)
        layers = []
        for values in (arguments, *below):
            layer, misnamed = _named(values)
            layers.append(layer)
            problems += misnamed
        origins = Origins(file=file.path, lines=file.lines, variables=variables, arguments=paths(layers[0]))
        self._check(merged(reversed(layers)), problems, origins)

    @property
    def delivery_timeout_seconds(self) -> float:
        """Maximum time that a record may wait in a producer's queue, retries included, before it is reported as failed.

        The Kafka setting `delivery.timeout.ms` gives the time; its default is the heartbeat timeout. The time is at
        most `expiry_seconds`, because the queue of a frozen leader must have expired when the leader resumes. After the
        session timeout a successor may be sending, and late records of the old leader would arrive out of order.
        """
        wanted = self.limits.heartbeat_timeout_seconds
        for settings in (self.base_kafka_config, self.producer_kafka_config):
            for name in DELIVERY_TIMEOUTS:
                configured = settings.milliseconds(name)
                if configured is not None:
                    wanted = configured or math.inf  # 0 is librdkafka's "never"
        return min(wanted, self.expiry_seconds)

    @property
    def expiry_seconds(self) -> float:
        """Upper bound of `delivery_timeout_seconds`: the session timeout less a second, or half of the session timeout,
        whichever is more. The bound is below the session timeout, because a successor may be sending after that."""
        return max(self.session_timeout_seconds - 1, self.session_timeout_seconds / 2)

    @property
    def exactly_once(self) -> bool:
        """True if readers of committed records see no duplicates."""
        return self.delivery in FENCED

    @property
    def mode(self) -> ReadingMode:
        """Return the effects of these settings on the tables. Raises ValueError if `source` is `auto` and depends on
        the table's layout."""
        mapped, stops = self.columns is not None, self.parking == "stop"
        return ReadingMode.of(self.source, self.delivery, is_mapped=mapped, stops=stops)

    def is_own_topic(self, topic: str) -> bool:
        """Return True for the leader topic, and for the checkpoint topic of each subscription of the group, even if the
        subscription's delivery does not use that topic."""
        if topic == self.checkpoint_topic or (self.leadership in {"auto", "neli"} and topic == self.leader_topic):
            return True
        group, ending = self.leader_group_id, ".checkpoint"
        subscription = topic.removeprefix(f"{group}.").removesuffix(ending)
        return bool(group and subscription) and topic == f"{group}.{subscription}{ending}"

    def kafka_settings(self, *, for_producer: bool) -> dict[str, object]:
        """Return the raw Kafka settings of a client, with secrets in clear text.

        The timeouts that `session_timeout_seconds` and `delivery_timeout_seconds` replace are left out.
        """
        merged = {**self.base_kafka_config, **(self.producer_kafka_config if for_producer else {})}
        return {name: value for name, value in merged.items() if name not in TRANSLATED}

    def redacted(self) -> dict[str, object]:
        """Return all settings in goharvest's spelling, for display, with secrets hidden."""
        shown: dict[str, object] = self.model_dump(by_alias=True)
        return shown | _durations(self) | {"limits": self.limits.model_dump(by_alias=True) | _durations(self.limits)}

    @field_validator("base_kafka_config")
    @classmethod
    def _with_servers(cls, settings: KafkaSettings) -> KafkaSettings:
        return KafkaSettings({"bootstrap.servers": _DEFAULT_BOOTSTRAP_SERVERS, **settings})

    @field_validator("producer_kafka_config")
    @classmethod
    def _without_session(cls, settings: KafkaSettings) -> KafkaSettings:
        if SESSION_TIMEOUT in settings:
            remedy = "move it to `baseKafkaConfig`, or set `sessionTimeout`"
            problem = Problem(path=(SESSION_TIMEOUT,), message="means nothing to a producer", remedy=remedy)
            raise_in_validator(cls.__name__, [problem])
        return settings

    @field_validator("leader_topic", "checkpoint_topic")
    @classmethod
    def _a_legal_topic(cls, topic: str) -> str:
        if topic and not is_legal_topic(topic):
            raise custom_error(
                "cannot name a topic", "use 1 to 249 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`, not just dots"
            )
        if topic in INTERNAL_TOPICS:
            raise custom_error(
                "is internal to Kafka: brokers refuse what clients write there",
                "remove it, so that the pool gets a topic of its own (the default), or name one of its own; "
                "every process of the pool has to name the same",
            )
        return topic

    @field_validator("leader_group_id", "name", "outbox_table")
    @classmethod
    def _sendable(cls, text: str) -> str:
        if complaint := unsendable(text):
            raise custom_error(complaint, "remove it")
        return text

    @field_validator("outbox_table")
    @classmethod
    def _identifiers(cls, table: str) -> str:
        for part in name_parts(table):
            if not part.strip():
                raise custom_error("has an empty name in it", "write `table` or `schema.table`")
            if len(part.encode()) > LONGEST_IDENTIFIER_BYTES:
                raise custom_error(
                    f"has a name of more than {LONGEST_IDENTIFIER_BYTES} bytes, which Postgres would cut off",
                    "write the name as Postgres has it",
                )
        return table

    @model_validator(mode="after")
    def _agree(self) -> Self:
        raise_in_validator(type(self).__name__, disagreements(self))
        return self


def _durations(settings: Settings) -> dict[str, str]:
    return {goharvest_name(name): format_duration(value) for name, value in settings if name.endswith("_seconds")}


def _named(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return values by field name, nested fields included, and a problem for each unknown name."""
    elsewhere = {alias: f"limits.{alias}" for name in Limits.model_fields for alias in (name, goharvest_name(name))}
    renamed, problems = to_field_names(HarvestConfig, values, elsewhere=elsewhere)
    for name in ("base_kafka_config", "producer_kafka_config"):
        if isinstance(given := renamed.get(name), Mapping):
            renamed[name] = canonical(given)
    if isinstance(given := renamed.get("limits"), Mapping):
        renamed["limits"], misnamed = to_field_names(Limits, given)
        problems += [problem.under("limits") for problem in misnamed]
    return renamed, problems
