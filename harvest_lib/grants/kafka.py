"""The minimal ACLs of a harvester, a reader and a consumer in Kafka, as commands or as data.

The ACLs of a harvester and a reader depend on the configuration: on `leadership`, on `delivery`, and on the topics that
the harvester creates if they are missing. If a prefix covers internal topics of Kafka, or a pool's topics for election
and checkpoints, an additional ACL denies writing to these topics, because in Kafka a denial overrides a permission.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from harvest_lib.config import HarvestConfig
from harvest_lib.record import INTERNAL_TOPICS

Resource = Literal["topic", "group", "transactional-id"]
_Wanted = tuple[Resource, str, bool, tuple[str, ...]]
"""Wanted permissions: the type of resource, its name, True if the name is a prefix, and the operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """An ACL. It permits an operation on a resource to a principal; with `denied` it denies the operation. With
    `prefixed` it applies to all resources with a name that begins with `name`."""

    principal: str
    resource: Resource
    name: str
    operation: str
    prefixed: bool = False
    denied: bool = False

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def harvester_acls(
    config: HarvestConfig,
    principal: str,
    topics: Collection[str],
    *,
    creates: bool = True,
    reads_group: bool = False,
) -> list[Acl]:
    """Return the ACLs of a harvester that delivers to `topics`; a name that ends in `*` is a prefix.

    With `creates` the harvester may create its topics for election and checkpoints. Without `creates` these topics have
    to exist. With `reads_group` the harvester may read the members of the group, because `leadership: auto` reads them
    before it uses the lock in Postgres.
    """
    wanted = list(_harvester(config, topics, creates=creates))
    if reads_group and config.leadership == "postgres":
        wanted.append(("group", config.leader_group_id, False, ("Describe",)))
    return [*_acls(principal, wanted), *_denials(principal, topics, INTERNAL_TOPICS)]


def reader_acls(config: HarvestConfig, principal: str, topics: Collection[str]) -> list[Acl]:
    """Return the ACLs for `harvest audit` and `harvest status`: reading `topics`, and the members of the election."""
    wanted: list[_Wanted] = [("topic", *_prefix(each), ("Read", "Describe")) for each in topics]
    if config.leadership == "neli":
        wanted.append(("group", config.leader_group_id, False, ("Describe",)))
    return _acls(principal, wanted)


def consumer_acls(
    name: str,
    principal: str,
    topics: Collection[str],
    *,
    published: Collection[str] = (),
    logs: Collection[str] = (),
    pool: Collection[str] = (),
) -> list[Acl]:
    """Return the ACLs of the consumer `name`: reading `topics`, writing the topics `published`, and reading and writing
    the recovery `logs` of a `SqliteStore`. Another principal creates the logs, see `create_recovery_log`. `pool` are a
    pool's topics for election and checkpoints, to which the consumer may not write."""
    wanted: list[_Wanted] = [("topic", *_prefix(each), ("Read", "Describe")) for each in topics]
    wanted.append(("group", name, False, ("Read",)))
    wanted += [("topic", *_prefix(each), ("Write", "Describe")) for each in published]
    for each in logs:
        wanted.append(("topic", *_prefix(each), ("Read", "Write", "Describe", "DescribeConfigs")))
    if logs:
        wanted.append(("transactional-id", f"{name}/", True, ("Write", "Describe")))
    return [*_acls(principal, wanted), *_denials(principal, [*published, *logs], {*INTERNAL_TOPICS, *pool})]


def commands(acls: Sequence[Acl], *, servers: str) -> list[str]:
    """Return the kafka-acls.sh commands that add `acls`: a command for each principal and resource."""
    grouped: dict[tuple[str, Resource, str, bool, bool], list[str]] = {}
    for acl in acls:
        place = acl.principal, acl.resource, acl.name, acl.prefixed, acl.denied
        grouped.setdefault(place, []).append(acl.operation)
    return [
        shlex.join(
            [
                *("kafka-acls.sh", "--bootstrap-server", servers, "--command-config", "operator.properties", "--add"),
                *("--deny-principal" if denied else "--allow-principal", principal),
                *(word for operation in operations for word in ("--operation", operation)),
                *(f"--{resource}", name),
                *(("--resource-pattern-type", "prefixed") if prefixed else ()),
            ]
        )
        for (principal, resource, name, prefixed, denied), operations in grouped.items()
    ]


def _acls(principal: str, wanted: Iterable[_Wanted]) -> list[Acl]:
    return [
        Acl(principal=principal, resource=resource, name=name, prefixed=prefixed, operation=operation)
        for resource, name, prefixed, operations in wanted
        for operation in operations
    ]


def _denials(principal: str, topics: Collection[str], kept: Collection[str]) -> list[Acl]:
    """Return ACLs that deny writing to each topic of `kept` that a prefix of `topics` covers."""
    beginnings = [topic.removesuffix("*") for topic in topics if topic.endswith("*")]
    return [
        Acl(principal=principal, resource="topic", name=each, operation="Write", denied=True)
        for each in sorted(kept)
        if any(each.startswith(beginning) for beginning in beginnings)
    ]


def _harvester(config: HarvestConfig, topics: Collection[str], *, creates: bool) -> Iterator[_Wanted]:
    for each in topics:
        yield "topic", *_prefix(each), ("Write", "Describe", "DescribeConfigs")
    if config.leadership == "neli":
        made = ("Create",) if creates and config.create_leader_topic else ()
        yield "topic", config.leader_topic, False, ("Read", "Write", "Describe", *made)
        yield "group", config.leader_group_id, False, ("Read",)
    if config.delivery == "transactional":
        made = ("Create", *(("Alter",) if config.shards > 1 else ())) if creates else ()
        yield "topic", config.checkpoint_topic, False, ("Read", "Write", "Describe", *made)
        yield "transactional-id", f"{config.checkpoint_topic}.", True, ("Write", "Describe")


def _prefix(topic: str) -> tuple[str, bool]:
    """Return a topic's name without `*`, and True if the name is a prefix. `*` alone is Kafka's wildcard, no prefix."""
    return (topic[:-1], True) if topic.endswith("*") and topic != "*" else (topic, False)
