"""One writer's way along the log: what counts as flushed, and when."""

import pytest
from support.pipelines import Taking, messages, writer_progress

from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.encoded_messages import encoded
from harvest_lib.pipeline.offset_log import OffsetLog

pytestmark = pytest.mark.quick


class Overtaken(OffsetLog):
    """Offsets whose writer acknowledges more just after they were flushed."""

    then = staticmethod(lambda: None)

    def flush(self):
        super().flush()
        self.then()


@pytest.fixture
def log(tmp_path):
    with CommitLog(tmp_path / "log", sync_seconds=1e9) as log:
        log.append(encoded(messages("A" * 20)))
        yield log


def test_what_is_acknowledged_while_offsets_are_flushed_does_not_count_as_flushed(log, tmp_path):
    offsets = Overtaken(tmp_path / "offsets", sync_log=log.sync)
    writing = writer_progress("c0", log, offsets, batch_messages=10)
    writing.bulk(Taking(), 20)
    offsets.then = lambda: writing.bulk(Taking(), 20)
    writing.flush()
    assert (writing.flushed, writing.position) == (10, 20)
    offsets.then = lambda: None
    writing.flush()
    assert writing.flushed == 20
    assert log.synced == 20
    offsets.close()


def test_offsets_are_flushed_once_their_interval_is_over_and_if_there_are_any(log, tmp_path):
    now, flushes = [10.0], []
    offsets = Overtaken(tmp_path / "offsets", sync_log=log.sync)
    offsets.then = lambda: flushes.append(now[0])
    writing = writer_progress("c0", log, offsets, batch_messages=10, flush_seconds=1.0, clock=lambda: now[0])
    now[0] += 5
    writing.flush_if_due()
    assert flushes == []
    writing.bulk(Taking(), 20)
    writing.flush_if_due()
    assert (flushes, writing.flushed) == ([15.0], 10)
    writing.bulk(Taking(), 20)
    now[0] += 0.9
    writing.flush_if_due()
    assert writing.flushed == 10
    now[0] += 0.1
    writing.flush_if_due()
    assert (flushes, writing.flushed) == ([15.0, 16.0], 20)
    offsets.close()
