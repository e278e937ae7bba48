"""What a harvester and a reader need in Kafka, and nothing more: ACLs, as commands or as data.

They follow from the configuration: who elects the leader, how records are delivered, which topics are made if missing.
"""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from harvest_lib.config import HarvestConfig

Resource = Literal["topic", "group", "transactional-id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One permission: a principal may do an operation on a resource, or on all whose names begin with its name."""

    principal: str
    resource: Resource
    name: str
    operation: str
    prefixed: bool = False

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def harvester_acls(
    config: HarvestConfig, principal: str, topics: Collection[str], *, creates: bool = True
) -> list[Acl]:
    """Return what a harvester needs to deliver to `topics`; a name that ends in `*` stands for all that begin so.

    With `creates` it may make the topics of its own, otherwise they have to be there.
    """
    return [
        Acl(principal=principal, resource=resource, name=name, prefixed=prefixed, operation=operation)
        for resource, name, prefixed, operations in _harvester(config, topics, creates=creates)
        for operation in operations
    ]


def reader_acls(config: HarvestConfig, principal: str, topics: Collection[str]) -> list[Acl]:
    """Return what `harvest audit` and `harvest status` need: to read `topics`, and to look at the election."""
    wanted: list[tuple[Resource, str, bool, tuple[str, ...]]] = [
        ("topic", *_prefix(each), ("Read", "Describe")) for each in topics
    ]
    if config.leadership == "neli":
        wanted.append(("group", config.leader_group_id, False, ("Describe",)))
    return [
        Acl(principal=principal, resource=resource, name=name, prefixed=prefixed, operation=operation)
        for resource, name, prefixed, operations in wanted
        for operation in operations
    ]


def commands(acls: Sequence[Acl], *, servers: str) -> list[str]:
    """Return the commands that add them, one for each resource."""
    grouped: dict[tuple[str, Resource, str, bool], list[str]] = {}
    for acl in acls:
        grouped.setdefault((acl.principal, acl.resource, acl.name, acl.prefixed), []).append(acl.operation)
    return [
        shlex.join(
            [
                *("kafka-acls.sh", "--bootstrap-server", servers, "--command-config", "operator.properties", "--add"),
                *("--allow-principal", principal),
                *(word for operation in operations for word in ("--operation", operation)),
                *(f"--{resource}", name),
                *(("--resource-pattern-type", "prefixed") if prefixed else ()),
            ]
        )
        for (principal, resource, name, prefixed), operations in grouped.items()
    ]


def _harvester(
    config: HarvestConfig, topics: Collection[str], *, creates: bool
) -> Iterator[tuple[Resource, str, bool, tuple[str, ...]]]:
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
    """Return a name and whether it is the beginning of names; `*` alone is Kafka's own sign for all."""
    return (topic[:-1], True) if topic.endswith("*") and topic != "*" else (topic, False)
