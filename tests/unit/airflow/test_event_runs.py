"""The loop of the operator that starts a run for each event; the answers of Airflow are given."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from harvest_lib.airflow.operators.event_runs import RunPerEventOperator

pytestmark = pytest.mark.quick

ASSET = Asset("orders")
REFUSED = 3


class Operator(RunPerEventOperator):
    allows = ()

    def _start(self, event):
        if event.id == REFUSED and event.id not in self.allows:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR, detail={"params": "refused"}))
        self.started.append(event.id)
        return True


def operator(*, allows=()):
    made = Operator(task_id="start", asset=ASSET, trigger_dag_id="order")
    made.allows, made.started = allows, []
    return made


class Events(list):
    def after(self, time):
        return Events(each for each in self if each.timestamp >= datetime.fromisoformat(time))

    def limit(self, number):
        return self[:number]


class Store(dict):
    def set(self, key, value):
        self[key] = value


@pytest.fixture
def context():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    events = Events(SimpleNamespace(id=n, timestamp=start + timedelta(minutes=n), extra={}) for n in range(1, 6))
    return {
        "asset_state_store": {ASSET: Store()},
        "triggering_asset_events": {ASSET: events[:1]},
        "inlet_events": {ASSET: events},
    }


def test_an_event_that_is_refused_keeps_no_other_from_its_run_and_is_seen_again(context):
    first = operator()
    with pytest.raises(AirflowException, match=r"refused the runs of 1 events, the first of them 3"):
        first.execute(context)
    assert first.started == [1, 2, 4, 5]
    again = operator(allows=[REFUSED])
    assert again.execute(context) == 5
    assert REFUSED in again.started
    later = {**context, "triggering_asset_events": {}}
    assert operator().execute(later) == 0, "the progress is stored by then"
