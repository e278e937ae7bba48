"""Progress reported to a reader, and when; and that the reader is let go."""

import pytest
from support.pipelines import Script, Taking, declared, message, messages, reader_thread

from harvest_lib.errors import MessageRefused
from harvest_lib.pipeline.commit_log import CommitLog
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
