"""The minimal rights of each role and principal: grants in Postgres, ACLs in Kafka."""

from harvest_lib.grants.postgres import Grants, Need, harvester_needs, missing_grants, require_grants

__all__ = ["Grants", "Need", "harvester_needs", "missing_grants", "require_grants"]
