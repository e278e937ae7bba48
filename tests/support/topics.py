"""Topics of a test."""

from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from support.waiting import eventually


def configure_topic(admin, topic, config):
    """Set some of what is configured for a topic."""
    setting = AlterConfigOpType.SET
    entries = [ConfigEntry(name, value, incremental_operation=setting) for name, value in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)


def recreate(admin, topic, **config):
    """Delete a topic and make it again, with a single partition."""
    admin.delete_topics([topic])[topic].result(60)

    def made():
        try:
            admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)
        except KafkaException:  # it is being deleted yet
            return False
        return True

    eventually(made, "the topic is made again")
