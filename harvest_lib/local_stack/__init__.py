"""The local stack: Postgres and Kafka as processes of this machine, for demonstrations and tests.

`Stack` holds both servers as long as it is open; `supervisor` keeps a stack running in the background. Nothing is
installed: the servers come from wheels and Maven coordinates into the state folder, and leave with it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harvest_lib.local_stack.stack import Stack

__all__ = ["Stack"]


def __getattr__(name: str) -> object:
    """Import `Stack` on demand: Spark's jobs find Java and jars here, without the servers' requirements."""
    if name == "Stack":
        from harvest_lib.local_stack.stack import Stack  # noqa: PLC0415 - see above

        return Stack
    raise AttributeError(name)
