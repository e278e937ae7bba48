"""The local stack: Postgres and Kafka as processes of this machine, for demonstrations and tests.

`Stack` runs both servers while it is open; `supervisor` keeps a stack running in the background. Nothing is installed
on the machine, because the servers come from wheels and Maven artifacts. The servers' files are in the state folder;
removing the folder removes the files.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harvest_lib.local_stack.stack import Stack

__all__ = ["Stack"]


def __getattr__(name: str) -> object:
    """Import `Stack` on demand, because Spark jobs use this package for Java and jars, without the dependencies of the
    servers."""
    if name == "Stack":
        from harvest_lib.local_stack.stack import Stack  # noqa: PLC0415 - see above

        return Stack
    raise AttributeError(name)
