"""`harvest platform`: Dagster and Airflow on the local stack."""

from pathlib import Path
from typing import Annotated, Any

import typer

from harvest_lib.cli import stack
from harvest_lib.cli.confirmation import Yes
from harvest_lib.cli.options import BROKERS, Json, KafkaVersion, PostgresVersion
from harvest_lib.cli.usage import require_choice


def platform(
    *,
    definitions: Annotated[
        str, typer.Option(metavar="MODULE", help="The module whose definitions Dagster serves.")
    ] = "dagster_harvest.example_flights.definitions",
    dags: Annotated[
        Path | None, typer.Option(help="The folder of DAGs that Airflow runs, instead of ours.", metavar="FOLDER")
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Start a Prometheus with our alert rules as well.")
    ] = False,
    brokers: Annotated[int, typer.Option(metavar="1|3", help="Kafka brokers: 1 or 3.")] = 1,
    postgres: Annotated[PostgresVersion, typer.Option(metavar="18|16", help="Version of Postgres: 18 or 16.")] = "18",
    kafka: Annotated[
        KafkaVersion, typer.Option(metavar="4.3.1|3.9.1", help="Version of Kafka: 4.3.1 or 3.9.1.")
    ] = "4.3.1",
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the data of earlier runs first.")] = False,
    yes: Yes = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, and stop everything at Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start Dagster and Airflow on the Postgres and the Kafka of `harvest up` (source checkout only).

    Starts the servers too, and returns once everything answers. `harvest ps`,
    `harvest logs` and `harvest down` show and stop it. Airflow runs our DAGs
    unless --dags is given, each time. With --observe, Prometheus scrapes the run
    that harvests in Dagster. Exits with 7 if something does not start.

    Examples:

      harvest platform

      harvest platform --dags dags

      harvest platform --observe
    """
    require_choice(brokers, "--brokers", BROKERS)
    stack.confirm_fresh(fresh=fresh, yes=yes)
    state = stack.state_folder()
    stack.bring_kafka(kafka, state)
    from infra.platform.airflow import checked_dags
    from infra.platform.up import make_stack, up

    options: dict[str, Any] = {"postgres": postgres, "kafka": kafka, "brokers": brokers, "fresh": fresh}
    options |= {"definitions": definitions, "observe": observe, "dags": "" if dags is None else str(checked_dags(dags))}
    if foreground:
        stack.hold(lambda: make_stack(state, **options), as_json=as_json)
    else:
        description, already = up(state, **options)
        stack.show(description, "already running" if already else "up", as_json=as_json)
