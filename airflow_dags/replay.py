"""A DAG that fills the topic of a new subscription with records delivered before, by its parameters."""

from airflow.sdk import Param, dag

from harvest_lib.airflow.operators.replay import ReplayOperator


@dag(
    dag_id="harvest_replay",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={
        "subscription": Param("flights-v2", type="string", minLength=1, title="The new subscription"),
        "from": Param("flights", type="string", minLength=1, title="Topic of the outbox"),
        "to": Param("flights.v2", type="string", minLength=1, title="Topic to fill, which exists and is empty"),
        "archive": Param("", type="string", title="URL of the archive, if segments were dropped"),
    },
    tags=["harvest"],
    doc_md=__doc__,
)
def replay() -> None:
    """Replay; a retry goes on where the try before ended."""
    ReplayOperator(
        task_id="replay",
        subscription="{{ params.subscription }}",
        topics=["{{ params['from'] }}={{ params.to }}"],
        archive="{{ params.archive }}",
        retries=2,
    )


replay()
