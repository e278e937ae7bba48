"""Progress reported to a reader, and when; and that the reader is let go."""

import tracemalloc

import pytest
from support.pipelines import Script, Taking, declared, message, messages, reader_thread

from harvest_lib.errors import MessageRefused
from harvest_lib.pipeline.commit_log import CommitLog
from harvest_lib.pipeline.logged_messages import MessageCache
from harvest_lib.pipeline.message import Mode, Op, PipelineMessage
from harvest_lib.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.quick


def test_a_reader_hears_of_what_stood_in_the_log_where_all_offsets_are_flushed_and_of_nothing_later(tmp_path):
    flushed, reported = [0], []

    class Going(Script):
        def read(self, _last):
            yield messages("AB")
            yield messages("AA", first=2)
            for position in (1, 2, 3, 4):
                flushed[0] = position
                yield []

        def kept(self, last):
            reported.append((flushed[0], {name: each.data["n"] for name, each in last.items()}))

    with CommitLog(tmp_path / "log") as log:
        reading = reader_thread(Going(), log, flushed=lambda: flushed[0])
        reading.run()
    assert reading.failure is None
    assert reported == [(2, {"A": 0, "B": 1}), (4, {"A": 3, "B": 1})]


class Large(Script):
    """A reader of many namespaces with large messages. Its position is a NOOP."""

    needs_data = False
    namespaces, size = 40, 250_000

    def read(self, last):
        self.last.append(dict(last))
        for number in range(self.namespaces):
            yield [message(f"t{number}", number, text=f"{number}" * (self.size // len(f"{number}")))]
        yield [PipelineMessage(Op.NOOP, 0, "place", {"n": self.namespaces}, Mode.SYNC)]


def test_the_data_of_a_last_message_is_not_kept_for_a_reader_that_needs_only_its_noops(tmp_path):
    """300 tables whose last row has 1 MB would take more than a pipeline has."""
    for start in range(2):
        reader = Large()
        with CommitLog(tmp_path / "log") as log:
            cache = MessageCache(most_bytes=0)
            thread = reader_thread(reader, log, flushed=lambda log=log: log.end, message_cache=cache)
            tracemalloc.start()
            try:
                thread.run()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert thread.failure is None
        assert peak < 8 * reader.size < reader.namespaces * reader.size
        assert len(reader.last[0]) == start * (reader.namespaces + 1)
        assert reader.kept_at[-1]["place"].data == {"n": reader.namespaces}
        told = [*reader.kept_at, *reader.last]
        assert all(not each.data for last in told for name, each in last.items() if name != "place")
    assert reader.last[0]["place"].data == {"n": reader.namespaces}
    assert reader.last[0]["t7"].op is Op.INSERT


def test_what_a_reader_holds_is_let_go_before_it_is_closed_also_where_it_is_refused(tmp_path):
    class Holding(Script):
        holds = True

        def read(self, _last):
            try:
                yield [message("A", 0, odd=object())]
            finally:
                self.holds = False

        def close(self):
            assert not self.holds
            super().close()

    reader = Holding()
    with pytest.raises(MessageRefused, match="extended JSON cannot hold"):
        Pipeline(declared(tmp_path, reader, {"c0": Taking()})).run()
    assert reader.closed == 1
