"""Create the ACLs that `harvest grants kafka --json` prints, where kafka-acls.sh is not available.

    harvest grants kafka -f harvest.yaml --topic orders --json | python docs/examples/apply_acls.py operator.json

The file has librdkafka's settings of a client that may alter ACLs; `harvest up --secure` writes such a file.
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
    """Return the ACLs as an admin client takes them."""
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
    """Create the ACLs; existing ACLs stay."""
    admin = AdminClient(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    wanted = bindings(json.load(sys.stdin))
    for made in admin.create_acls(wanted).values():
        made.result(30)
    print(f"{len(wanted)} permissions are there")


if __name__ == "__main__":
    main()
