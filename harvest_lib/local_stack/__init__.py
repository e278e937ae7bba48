"""The local stack: Postgres and Kafka as processes of this machine, for demonstrations and tests.

`Stack` holds both servers for as long as it is open; `supervisor` keeps one running in the background. Nothing is
installed: the servers come from wheels and Maven coordinates into the state folder, and leave with it.
"""

from harvest_lib.local_stack.stack import Stack

__all__ = ["Stack"]
