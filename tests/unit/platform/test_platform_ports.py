"""Services of the platform whose port another process took."""

import os

import pytest

from harvest_lib.errors import StackError
from infra.platform.platform import Platform
from infra.platform.service import Service, ServicePlan

pytestmark = pytest.mark.gate


class Crowded(Platform):
    """A platform of one service, which cannot have its port the first times."""

    def __init__(self, folder, refused, said):
        super().__init__(folder, definitions="json", airflow=False)
        self.refused, self.said, self.starts = refused, said, 0

    def _start(self, _dsn, _servers):
        self.starts += 1
        refuses = self.starts <= self.refused
        script = f"echo '{self.said}'; exit 1" if refuses else "exec sleep 600"
        plan = ServicePlan(
            name="some",
            version="1",
            command=("/bin/sh", "-c", script),
            environment=os.environ,
            serves=lambda _: not refuses,
        )
        self._spawn([Service(plan, logs=self._logs)])
        self._services[-1].await_ready()


@pytest.fixture
def crowded(tmp_path):
    made = []

    def make(refused, said="OSError: [Errno 98] Address already in use"):
        made.append(Crowded(tmp_path, refused, said))
        return made[0]

    yield make
    made[0].stop()


def test_all_start_again_when_a_port_is_taken(crowded):
    platform = crowded(2)
    platform.start(dsn="", bootstrap_servers="")
    assert platform.starts == 3
    assert [server.name for server in platform.describe()] == ["some"]


@pytest.mark.parametrize(("said", "starts"), [("Address already in use", 3), ("something else", 1)])
def test_the_third_time_is_the_last_and_another_error_is_not_tried_again(crowded, said, starts):
    platform = crowded(3, f"OSError: {said}")
    with pytest.raises(StackError, match=said):
        platform.start(dsn="", bootstrap_servers="")
    assert platform.starts == starts
