"""The files of a history: appended lines are read again, in order, and a bad line costs itself only."""

import json
from threading import Barrier, Thread

import pytest
from support.written_history import Pen, written

from infra.chaos.history.events import Effect, Write
from infra.chaos.history.lines import from_line, to_line
from infra.chaos.history.reader import read_history
from infra.chaos.history.writer import HistoryWriter

pytestmark = pytest.mark.quick


def effect(time, event="e", process="p"):
    return Effect(type="ok", process=process, time=time, wall=time, event=event, consumer="c")


def write_file(path, *events):
    with HistoryWriter(path) as writer:
        for event in events:
            writer.append(event)
    return path


def read(*files):
    bad = []
    return list(read_history(files, on_bad=bad.append)), bad


def test_several_files_are_read_in_the_order_of_time(tmp_path):
    one = write_file(tmp_path / "one", effect(1.0), effect(4.0), effect(5.0))
    two = write_file(tmp_path / "two", effect(2.0), effect(4.0, "second file"), effect(3.0))
    events, bad = read(one, two)
    assert [event.time for event in events] == [1, 2, 3, 4, 4, 5]
    assert events[4].event == "second file"
    assert not bad


def test_events_are_stamped_when_they_are_made(tmp_path):
    first, second = (Effect(type="ok", process="p", event=event, consumer="c") for event in "ab")
    assert 0 < first.time <= second.time
    assert first.wall > 1e9


def test_a_line_is_in_the_file_before_append_returns(tmp_path):
    writer = HistoryWriter(tmp_path / "h")
    writer.append(effect(1.0))
    assert read(tmp_path / "h") == ([effect(1.0)], [])
    writer.close()


def test_threads_do_not_write_into_each_others_lines(tmp_path):
    together = Barrier(4)

    def run(writer, name):
        together.wait()
        for number in range(200):
            writer.append(effect(number, name * 500))

    with HistoryWriter(tmp_path / "h") as writer:
        threads = [Thread(target=run, args=(writer, name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events, bad = read(tmp_path / "h")
    assert len(events) == 800
    assert not bad


def test_a_torn_last_line_does_not_spoil_what_comes_after(tmp_path):
    path = write_file(tmp_path / "h", effect(1.0))
    path.write_bytes(path.read_bytes() + b'{"kind":"eff')
    write_file(path, effect(2.0))
    events, bad = read(path)
    assert events == [effect(1.0), effect(2.0)]
    assert [(line.file, line.line) for line in bad] == [(path, 2)]


def changed(**fields):
    document = json.loads(to_line(effect(1.0))) | fields
    return json.dumps({name: value for name, value in document.items() if value != "gone"})


def test_the_values_of_a_poll_are_checked():
    line = to_line(Pen().poll("a1").events[0])
    for old, new in [('"offset":0', '"offset":"0"'), ('"hash":"hash-a1"', '"hash":null'), (',"seq":1', "")]:
        assert old in line
        with pytest.raises(ValueError, match="records"):
            from_line(line.replace(old, new))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "Invalid JSON"),
        ("[]", "not an object"),
        ("[" * 100_000, "recursion limit"),
        (b"\xff\xfe\xff", ""),
        ('{"kind":"surprise"}', "unknown kind 'surprise'"),
        ('{"kind":["effect"]}', "unknown kind"),
        (changed(event="gone"), "field `event` is missing"),
        (changed(time="gone"), "field `time` is missing"),
        (changed(time="1"), "field `time`"),
        (changed(time=float("nan")), "field `time`"),
        (changed(number=True), "field `number`"),
        (changed(type="done"), "field `type`: Input should be 'invoke', 'ok', 'fail' or 'info', not 'done'"),
        (changed(event=7), "field `event`: Input should be a valid string, not 7"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line, reason):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the reason is compared below
        from_line(line)
    assert reason in str(raised.value)


def test_fields_that_are_not_known_are_passed_over():
    assert from_line(changed(weather="fine")) == effect(1.0)


def test_a_write_comes_back_as_it_was():
    event = Write(type="ok", process="p", time=1.0, wall=2.0, transaction="t", records=(written("a1"),), number=3)
    assert from_line(to_line(event)) == event


def test_a_time_far_out_of_order_is_told_and_the_event_kept(tmp_path):
    path = write_file(tmp_path / "h", *map(effect, range(10, 3_000)), effect(1.0))
    events, bad = read(path)
    assert len(events) == 2_991
    assert [line.line for line in bad] == [2_991]
