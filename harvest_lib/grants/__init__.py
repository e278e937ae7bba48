"""What each role and principal needs, and nothing more: grants in Postgres, ACLs in Kafka."""

from harvest_lib.grants.postgres import Grants, ReadingMode

__all__ = ["Grants", "ReadingMode"]
