"""A link of a chain of consumers, run as a process: passes messages on, or, at the end, counts each by its value."""

from collections import Counter

import typer

from harvest_lib.examples.running import run, write_sums

CREATE = "CREATE TABLE IF NOT EXISTS effects (id TEXT PRIMARY KEY, n BIGINT NOT NULL)"
_ADD = """
INSERT INTO effects SELECT * FROM unnest(%s::text[], %s::bigint[])
ON CONFLICT (id) DO UPDATE SET n = effects.n + excluded.n
"""


class PassingOn:
    def __init__(self, to):
        self._to = to

    def consume_message(self, transaction, message):
        transaction.publish(self._to, message.record.value(), partition=transaction.shard.partition)

    def finalize_txn(self, transaction):
        pass


class Counting:
    def consume_message(self, transaction, message):
        transaction.memory.setdefault("seen", Counter())[message.record.value().decode()] += 1

    def finalize_txn(self, transaction):
        write_sums(transaction, _ADD, transaction.memory["seen"])


def main(
    name: str = "",
    topic: str = "",
    to: str = "",
    dsn: str = typer.Option(envvar="HARVEST_DSN"),
    servers: str = typer.Option(envvar="HARVEST_BOOTSTRAP_SERVERS"),
    settings: list[str] = typer.Option([], "--set"),  # noqa: B008
) -> None:
    run(
        PassingOn(to) if to else Counting(),
        name=name,
        topic=topic,
        create=CREATE,
        dsn=dsn,
        servers=servers,
        settings=settings,
        min_txn=0.5,
    )


if __name__ == "__main__":
    typer.run(main)
