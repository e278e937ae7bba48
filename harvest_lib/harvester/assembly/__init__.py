"""Assembly of a harvester from its configuration: preconditions, engine, election, source, delivery and store."""
