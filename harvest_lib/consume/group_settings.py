"""Settings of the Kafka client that joins the consumer group."""

from collections.abc import Mapping
from typing import Any

from harvest_lib.errors import ConfigError
from harvest_lib.kafka_client import client_settings

_DECIDED = {
    "group.protocol": "consumers join their group by the classic protocol",
    "group.id": "the group is the consumer's `name`",
    "enable.auto.commit": "offsets are kept with the state, in the checkpoints",
    "auto.offset.reset": "a partition goes on from its checkpoint; without a checkpoint it begins with the log",
    "isolation.level": "it is the parameter `isolation`",
    "partition.assignment.strategy": "partitions that stay are not given up when members change",
}
"""Settings that the user must not set because the consumer sets them, with the reasons."""


def group_settings(settings: Mapping[str, object], name: str) -> dict[str, Any]:
    """Return the settings of a member of the group `name`. Raises ConfigError if the user's `settings` contradict the
    consumer's own."""
    ours = {"group.protocol": "classic", "group.id": name, "enable.auto.commit": "false"}
    for each, reason in _DECIDED.items():
        value = str(settings.get(each, ""))
        if each in settings and ours.get(each) not in {value, value.lower()}:
            raise ConfigError(f"`{each}` must not be set: {reason}", field="settings", next_step=f"leave out `{each}`")
    return client_settings(
        settings,
        **{
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "partition.assignment.strategy": "cooperative-sticky",
            "allow.auto.create.topics": False,
        },
    )
