"""Code around the harvester: fault injection, demos, the platform, monitoring, generated docs, commands of a clone."""
