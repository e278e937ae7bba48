"""Leadership: at any time a single process of a pool harvests each shard."""

from harvest_lib.leadership.lock_session import lock_holder
from harvest_lib.leadership.neli import Neli
from harvest_lib.leadership.postgres import PostgresLeadership
from harvest_lib.leadership.protocol import Leadership, Term, TermEnd
from harvest_lib.leadership.solo import Solo

__all__ = ["Leadership", "Neli", "PostgresLeadership", "Solo", "Term", "TermEnd", "lock_holder"]
