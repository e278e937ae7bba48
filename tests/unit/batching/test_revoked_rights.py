"""Rights that are gone while a loop in batches runs are waited for; a permanent loss ends it."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from support.batches import BatchRuns
from support.rows import row

from harvest_lib.errors import DatabaseAccessDenied, KafkaAccessDenied, OutboxTableError

pytestmark = pytest.mark.quick


@pytest.fixture
def runs():
    made = BatchRuns()
    made.table.insert(row(1, "k"))
    return made


def raises_once(call, error):
    errors = [error]

    def called(*arguments):
        if errors:
            raise errors.pop()
        return call(*arguments)

    return called


def run(loop):
    """Run until there is nothing to do."""
    loop._rest = loop._stopping.set
    loop.run()


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_an_acl_on_the_checkpoint_topic_is_waited_for(runs, caplog):
    runs.store.load = raises_once(runs.store.load, KafkaAccessDenied("no", evidence="refused", next_step="ACL"))
    run(runs.loop())
    assert runs.kafka.ids == [1]
    assert said(caplog) == ["kafka_access_denied"]


def test_a_table_that_is_only_hidden_is_waited_for(runs, caplog):
    loop, gone = runs.loop(), OutboxTableError("not there", next_step="init")

    @contextmanager
    def sight():
        try:
            yield
        except OutboxTableError as error:
            raise DatabaseAccessDenied("hidden", evidence="no USAGE", next_step="GRANT") from error

    runs.store.lead = raises_once(runs.store.lead, gone)
    loop._ports = replace(runs.ports, translate_errors=sight)
    run(loop)
    assert runs.kafka.ids == [1]
    assert said(caplog) == ["database_access_denied"]


def test_a_table_that_is_gone_is_not(runs):
    runs.store.lead = raises_once(runs.store.lead, OutboxTableError("not there", next_step="init"))
    with pytest.raises(OutboxTableError):
        run(runs.loop())
