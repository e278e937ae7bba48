"""One process that stands for the shards of a pool, and says which it leads whenever that changes: for tests that kill.

python -m support.neli_member SERVERS GROUP SHARDS HEARTBEAT_TIMEOUT SESSION_TIMEOUT
"""

import json
import sys

from harvest_lib.leadership import Neli
from harvest_lib.leadership.neli_settings import NeliSettings


def main():
    servers, group, shards, heartbeat, session = sys.argv[1:]
    settings = NeliSettings(
        topic=f"{group}.neli",
        group_id=group,
        shards=int(shards),
        heartbeat_timeout_seconds=float(heartbeat),
        session_timeout_seconds=float(session),
    )
    member = Neli(settings, {"bootstrap.servers": servers})
    member.start()
    terms = ()
    while True:
        terms = member.terms(60, terms)
        sys.stdout.write(json.dumps([term.shard for term in terms]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
