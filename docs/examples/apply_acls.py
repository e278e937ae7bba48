"""Put the ACLs that `harvest grants kafka --json` prints into Kafka, where kafka-acls.sh is not at hand.

    harvest grants kafka -f harvest.yaml --topic orders --json | python docs/examples/apply_acls.py operator.json

The file holds librdkafka's settings of a client that may alter ACLs; `harvest up --secure` writes one.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Alter": AclOperation.ALTER,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


def bindings(acls: Sequence[dict[str, Any]]) -> list[Any]:
    """Return what an admin client takes."""
    return [
        AclBinding(
            RESOURCES[acl["resource"]],
            acl["name"],
            ResourcePatternType.PREFIXED if acl["prefixed"] else ResourcePatternType.LITERAL,
            acl["principal"],
            "*",
            OPERATIONS[acl["operation"]],
            AclPermissionType.DENY if acl["denied"] else AclPermissionType.ALLOW,
        )
        for acl in acls
    ]


def main() -> None:
    """Add them; what is there already stays."""
    admin = AdminClient(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    wanted = bindings(json.load(sys.stdin))
    for made in admin.create_acls(wanted).values():
        made.result(30)
    print(f"{len(wanted)} permissions are there")


if __name__ == "__main__":
    main()
