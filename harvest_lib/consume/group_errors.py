"""Errors of the consumer group that last until the group or a setting is changed."""

from confluent_kafka import KafkaError as ClientError

from harvest_lib.errors import ConfigError, HarvestError, KafkaError

_LASTING = {
    ClientError.INCONSISTENT_GROUP_PROTOCOL: (
        "other programs are members of the group {group!r}, and assign partitions in another way",
        "stop them, or give them or this consumer another name: kafka-consumer-groups.sh --bootstrap-server … "
        "--describe --members --group {group}",
    ),
    ClientError.GROUP_MAX_SIZE_REACHED: (
        "the group {group!r} has as many members as the brokers allow",
        "stop members: a member without a partition does nothing; or raise `group.max.size` of the brokers",
    ),
    ClientError.FENCED_INSTANCE_ID: (
        "another process has joined the group {group!r} under the same `group.instance.id`",
        "give each process a `group.instance.id` of its own, or leave it out",
    ),
    ClientError.UNRELEASED_INSTANCE_ID: (
        "another process has joined the group {group!r} under the same `group.instance.id`",
        "give each process a `group.instance.id` of its own, or leave it out",
    ),
    ClientError.UNSUPPORTED_VERSION: (
        "the brokers do not know how members of the group {group!r} speak",
        "use brokers of Kafka 2.1 or later",
    ),
}
_SETTINGS = {
    ClientError.INVALID_SESSION_TIMEOUT: (
        "the brokers do not allow this `session.timeout.ms`",
        "choose a value between `group.min.session.timeout.ms` and `group.max.session.timeout.ms` of the brokers",
    ),
    ClientError.INVALID_GROUP_ID: (
        "the brokers take no group of the name {group!r}",
        "give the consumer another `name`",
    ),
}


def lasting(error: ClientError, group: str) -> HarvestError | None:
    """Return the HarvestError for a lasting error of the group; None for any other error."""
    code, evidence = error.code(), f"{error.str()} ({error.name()})"
    if code in _SETTINGS:
        cause, step = _SETTINGS[code]
        return ConfigError(
            f"{cause.format(group=group)}: {evidence}", field="settings", next_step=step.format(group=group)
        )
    if code in _LASTING:
        cause, step = _LASTING[code]
        return KafkaError(cause.format(group=group), evidence=evidence, next_step=step.format(group=group))
    return None
