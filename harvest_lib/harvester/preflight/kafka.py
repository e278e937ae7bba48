"""Preflight checks of Kafka: brokers, group of the election, topics of the harvester, topics of the records."""

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, NewPartitions, NewTopic

from harvest_lib.checkpoints.topic import COMPACTED, removes_checkpoints
from harvest_lib.clock import Deadline
from harvest_lib.config import HarvestConfig
from harvest_lib.errors import KafkaAccessDenied, KafkaError, TopicCompacted, TopicMissing
from harvest_lib.grants.kafka import Resource
from harvest_lib.harvester.assembly.factory import refuse_bad_settings
from harvest_lib.harvester.assembly.preconditions import Check
from harvest_lib.harvester.assembly.transactions import WITHOUT, lacking, try_transactions
from harvest_lib.harvester.preflight.report import Report
from harvest_lib.kafka_client import answer_of, client_settings, is_refusal, topic_partitions, topic_settings, translate
from harvest_lib.kafka_topics import creation, topic_missing, topic_too_small

_SECONDS = 5.0
_PAUSE_SECONDS = 0.5
_SAFE_COPIES = 2
"""A record with this number of copies survives the loss of a broker."""
_NO_COORDINATOR = (
    ClientError.COORDINATOR_NOT_AVAILABLE,
    ClientError.NOT_COORDINATOR,
    ClientError.COORDINATOR_LOAD_IN_PROGRESS,
    ClientError.GROUP_ID_NOT_FOUND,
)


def check_kafka(
    config: HarvestConfig, topics: Collection[str], report: Report, with_postgres: Sequence[Check] = ()
) -> None:
    """Report problems of Kafka for a harvester that delivers to `topics`. `with_postgres` are checks that need both
    servers. These checks run only if the brokers answer."""
    if not report.run("configuration", "settings of the clients", lambda: refuse_bad_settings(config, Producer)):
        return
    settings = config.kafka_settings(for_producer=False)
    present: dict[str, int] = {}
    if report.run("kafka", "the brokers answer", lambda: present.update(topic_partitions(settings))):
        for what, step in with_postgres:
            report.run("kafka", what, step)
        _Cluster(config, present, report).check(topics)


class _Cluster:
    """The checks of a Kafka cluster that answers. `present` maps the topics that this user may see to their numbers of
    partitions."""

    def __init__(self, config: HarvestConfig, present: Mapping[str, int], report: Report) -> None:
        self._config = config
        self._present = present
        self._report = report
        self._settings = config.kafka_settings(for_producer=False)
        self._servers = str(self._settings["bootstrap.servers"])
        self._admin = AdminClient(client_settings(self._settings))

    def check(self, topics: Collection[str]) -> None:
        config, run = self._config, self._report.run
        if config.leadership == "neli":
            run("kafka", f"the group {config.leader_group_id}", self._group)
            self._own_topic(config.leader_topic, creates=config.create_leader_topic, grows=False, config={})
        if config.delivery == "transactional":
            self._own_topic(config.checkpoint_topic, creates=True, grows=True, config=COMPACTED)
            self._compacted(config.checkpoint_topic)
            run("kafka", "transactions", lambda: try_transactions(config))
        for topic in sorted(topics):
            run("kafka", f"the topic {topic}", partial(self._topic, topic))
        self._replication(topics)
        if not topics:
            self._report.warn(
                "kafka",
                "no topic of the records was checked",
                evidence="the outbox has no readable record, and the subscription names no topic",
                next_step="name them: `harvest check --topic orders`",
            )

    def _group(self) -> None:
        name, deadline = self._config.leader_group_id, Deadline(_SECONDS)
        while True:
            answer = self._admin.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=_SECONDS
            )
            try:
                described = answer_of(answer[name], 2 * _SECONDS)
            except KafkaException as error:
                if is_refusal(error.args[0]):
                    raise self._denied("group", name, ["Read"], error.args[0].str()) from error
                if error.args[0].code() not in _NO_COORDINATOR:
                    raise translate(error.args[0], settings=self._settings) from error
                if deadline.passed:
                    return  # no error: a cluster has no coordinator before a group uses it for the first time
                time.sleep(_PAUSE_SECONDS)
            else:
                self._require("group", name, described.authorized_operations, {"Read": AclOperation.READ})
                return

    def _own_topic(self, topic: str, *, creates: bool, grows: bool, config: Mapping[str, str]) -> None:
        """Check a topic that belongs to the harvester and needs a partition for each shard. `creates`: a start creates
        the topic if it is missing. `grows`: a start adds missing partitions."""
        check = partial(self._check_own, topic, creates=creates, grows=grows, config=config)
        self._report.run("kafka", f"the topic {topic}", check)

    def _check_own(self, topic: str, *, creates: bool, grows: bool, config: Mapping[str, str]) -> None:
        needed = self._config.shards
        if topic not in self._present:
            if not creates:
                raise topic_missing(topic, partitions=needed, evidence="`createLeaderTopic` is false")
            new = NewTopic(topic, num_partitions=needed, config=dict(config))
            future = self._admin.create_topics([new], validate_only=True, request_timeout=_SECONDS)[topic]
            try:
                answer_of(future, 2 * _SECONDS)
            except KafkaException as error:
                if is_refusal(error.args[0]):
                    raise self._denied("topic", topic, ["Create"], error.args[0].str()) from error
                raise topic_missing(topic, partitions=needed, evidence=error.args[0].str()) from error
            return
        operations = {"Read": AclOperation.READ, "Write": AclOperation.WRITE}
        self._require("topic", topic, self._describe(topic, "Read").authorized_operations, operations)
        if (present := self._present[topic]) < needed:
            if not grows:
                raise topic_too_small(topic, partitions=present, needed=needed, why="one for each shard")
            self._try_to_grow(topic, needed)

    def _try_to_grow(self, topic: str, needed: int) -> None:
        """Raise KafkaError unless this user may add the missing partitions, as a start would do."""
        more = [NewPartitions(topic, needed)]
        future = self._admin.create_partitions(more, validate_only=True, request_timeout=_SECONDS)[topic]
        self._result(future, "topic", topic, "Alter")

    def _compacted(self, topic: str) -> None:
        """Warn if Kafka removes checkpoints by age or size. This is Kafka's default for a topic that the harvester did
        not create."""
        policy = self._configured(topic).get("cleanup.policy", "") if topic in self._present else ""
        if removes_checkpoints(policy):
            self._report.warn(
                "kafka",
                f"Kafka removes old checkpoints from the topic {topic!r}: without them no leader begins",
                evidence=f"`cleanup.policy` is {policy!r}, and should be `compact`",
                next_step=self._alter(topic, "cleanup.policy=compact"),
            )

    def _topic(self, topic: str) -> None:
        """Check a topic that records are sent to."""
        if self._config.is_own_topic(topic):
            raise KafkaError(
                f"the topic {topic!r} belongs to the harvesters: its records would be parked",
                evidence="`leaderTopic` or `checkpointTopic` names it, or it has a default name of this group",
                next_step="give it another name in these settings, or write records for another topic",
            )
        if topic not in self._present:
            raise TopicMissing(
                f"the topic {topic!r} does not exist, or this user may not see it: its records would be parked",
                evidence=f"it is not among the {len(self._present)} topics that Kafka lists",
                next_step=f"{creation(topic, 6)}; or grant `Describe` and `Write` on it; or correct the writer",
            )
        described = self._describe(topic, "Write")
        self._require("topic", topic, described.authorized_operations, {"Write": AclOperation.WRITE})
        if leaderless := [each.id for each in described.partitions if each.leader is None or each.leader.id < 0]:
            raise KafkaError(
                f"the topic {topic!r} takes no records now",
                evidence=f"partitions without a leader: {', '.join(map(str, leaderless))}",
                next_step="bring back the brokers that have their replicas",
            )
        if self._config.delivery == "sequenced" and "compact" in self._configured(topic).get("cleanup.policy", ""):
            raise TopicCompacted(
                f"the topic {topic!r} is compacted, and `delivery: sequenced` cannot use it",
                evidence="`cleanup.policy` has `compact`",
                next_step=f"{self._alter(topic, 'cleanup.policy=delete')}; or use `delivery: transactional`",
            )

    def _replication(self, topics: Collection[str]) -> None:
        """Warn of topics that can lose acknowledged records if a single broker is lost, and of topics that accept no
        records if a single broker is unavailable."""
        single, unsafe, strict, starved = [], [], [], []
        for topic in sorted(topics):
            if topic not in self._present:
                continue
            try:
                replicas = min((len(each.replicas) for each in self._describe(topic, "Describe").partitions), default=0)
            except KafkaError:
                continue  # the check of the topic has reported this error
            known = self._configured(topic).get("min.insync.replicas")
            least = int(known) if known else None
            if least is not None and least > replicas:
                starved.append(topic)
            elif replicas == 1:
                single.append(topic)
            elif least == 1:
                unsafe.append(topic)
            elif least == replicas:
                strict.append((topic, replicas))
        names = ", ".join
        if single:
            self._report.warn(
                "kafka",
                f"the records of {names(single)} are on the disk of a single broker",
                evidence="replication factor 1",
                next_step="recreate them with --replication-factor 3 where there are three brokers",
            )
        if starved:
            self._report.warn(
                "kafka",
                f"{names(starved)} require more copies than they have: Kafka before 3.7 takes no records for them",
                evidence="min.insync.replicas is above the replication factor; since 3.7 fewer copies are enough",
                next_step="; ".join(self._alter(each, "min.insync.replicas=1") for each in starved)
                + "; or add replicas: kafka-reassign-partitions.sh",
            )
        if unsafe:
            self._report.warn(
                "kafka",
                f"Kafka acknowledges records of {names(unsafe)} once a single broker has them: they are lost with it",
                evidence="min.insync.replicas is 1",
                next_step="; ".join(self._alter(each, f"min.insync.replicas={_SAFE_COPIES}") for each in unsafe),
            )
        if strict:
            lower = [
                self._alter(each, f"min.insync.replicas={number - 1}")
                for each, number in strict
                if number > _SAFE_COPIES
            ]
            self._report.warn(
                "kafka",
                f"while a broker is unavailable, {names(each for each, _ in strict)} take no records",
                evidence="min.insync.replicas is as high as the replication factor",
                next_step="; or ".join([*lower, "add replicas: kafka-reassign-partitions.sh"]),
            )

    def _describe(self, topic: str, operation: str) -> Any:
        answer = self._admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=_SECONDS
        )
        return self._result(answer[topic], "topic", topic, operation)

    def _configured(self, topic: str) -> dict[str, str]:
        """Return the topic's settings; empty if this user may not see them."""
        return topic_settings(self._admin, [topic], timeout_seconds=_SECONDS)[topic]

    def _result(self, future: "Future[Any]", resource: Resource, name: str, operation: str) -> Any:
        try:
            return answer_of(future, 2 * _SECONDS)
        except KafkaException as error:
            if is_refusal(error.args[0]):
                raise self._denied(resource, name, [operation], error.args[0].str()) from error
            raise translate(error.args[0], settings=self._settings) from error

    def _require(self, resource: Resource, name: str, allowed: Any, needed: Mapping[str, AclOperation]) -> None:
        """Raise KafkaAccessDenied if `allowed` lacks needed operations. `allowed` is None if the brokers have no ACLs
        and so allow all operations."""
        if allowed is not None and (missing := [each for each, code in needed.items() if code not in allowed]):
            raise self._denied(
                resource, name, missing, f"allowed: {', '.join(each.name for each in allowed) or 'none'}"
            )

    def _denied(self, resource: Resource, name: str, operations: list[str], evidence: str) -> KafkaAccessDenied:
        is_ours = resource == "topic" and name == self._config.checkpoint_topic
        otherwise = f"; {WITHOUT}" if is_ours else ""
        return lacking(self._config, resource, name, operations, evidence, otherwise=otherwise)

    def _alter(self, topic: str, setting: str) -> str:
        return self._command("kafka-configs.sh", "--alter", "--topic", topic, "--add-config", setting)

    def _command(self, tool: str, *arguments: str) -> str:
        """Return a command line for this cluster. Unless the cluster uses plaintext, the command reads the settings
        file that `harvest grants kafka` describes."""
        is_open = str(self._settings.get("security.protocol", "plaintext")).lower() == "plaintext"
        who = () if is_open else ("--command-config", "operator.properties")
        return shlex.join([tool, "--bootstrap-server", self._servers, *who, *arguments])
