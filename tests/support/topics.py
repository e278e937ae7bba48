"""Topics of a test."""

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource


def configure_topic(admin, topic, config):
    """Set some of what is configured for a topic."""
    setting = AlterConfigOpType.SET
    entries = [ConfigEntry(name, value, incremental_operation=setting) for name, value in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)
