"""The comparison with other relays: its ratios, its report, and what it says of a relay that cannot be had."""

import json
import shutil

import pytest
from rich.console import Console

from harvest_lib.errors import NothingChecked, StackError
from infra.interruption import Interrupted
from tests.benchmarks.compare import __main__ as program
from tests.benchmarks.compare import debezium, page, progress
from tests.benchmarks.compare.drain import Drain
from tests.benchmarks.compare.failover import Failover
from tests.benchmarks.compare.goharvest import Goharvest, _data_source
from tests.benchmarks.compare.live import Live, percentiles
from tests.benchmarks.compare.ours import BARRIER, EXACTLY_ONCE
from tests.benchmarks.compare.peer import Built, LeftOutError
from tests.benchmarks.compare.plots import draw
from tests.benchmarks.compare.progress import Sample, rate, watch
from tests.benchmarks.compare.results import Found, results
from tests.benchmarks.compare.rounds import Comparison, Size, compare
from tests.benchmarks.compare.traffic import Traffic
from tests.benchmarks.report import write

pytestmark = pytest.mark.quick

TITLES = {"exactly-once": "ours, exactly once", "debezium": "Debezium", "goharvest": "goharvest"}


def drains(*rates, cpu=5.0):
    return [each and Drain(rate=each, cpu_micros=cpu, servers_cpu_micros=7.0, megabytes=each / 100) for each in rates]


def lines(**found):
    return {each.name: each for each in results({name.replace("_", "-"): each for name, each in found.items()})}


def test_a_ratio_is_the_median_of_the_rounds_and_not_of_the_rates():
    found = lines(
        exactly_once=Found(drains=drains(100.0, 900.0, 300.0)), debezium=Found(drains=drains(10.0, 100.0, 60.0))
    )
    ratio = found["exactly-once-to-debezium"]
    assert (ratio.value, ratio.floor, ratio.ratio, ratio.ratios) == (300.0, 60.0, 9.0, (5.0, 10.0))
    assert (ratio.target, ratio.met) == (8.0, True)


def test_the_target_beside_goharvest_is_missed_by_less_than_eighty_times():
    found = lines(exactly_once=Found(drains=drains(790.0)), goharvest=Found(drains=drains(10.0)))
    assert (found["exactly-once-to-goharvest"].target, found["exactly-once-to-goharvest"].met) == (80.0, False)


def test_long_drains_have_lines_and_a_ratio_of_their_own():
    ours, other = (Found(drains=drains(rate), long_drain=drains(rate / 2)[0]) for rate in (900.0, 100.0))
    found = lines(exactly_once=ours, debezium=other)
    assert found["drain-long-debezium"].value == 50.0
    assert (found["long-exactly-once-to-debezium"].ratio, found["exactly-once-to-debezium"].ratio) == (9.0, 9.0)


def test_a_round_in_which_one_failed_has_no_ratio():
    found = lines(
        exactly_once=Found(drains=drains(100.0, None, 300.0)), debezium=Found(drains=drains(None, 10.0, 10.0))
    )
    assert found["exactly-once-to-debezium"].ratios == (30.0, 30.0)
    assert found["drain-debezium"].value == 10.0


def test_a_round_that_not_all_have_ended_has_no_ratio_yet():
    found = lines(exactly_once=Found(drains=drains(100.0, 300.0)), debezium=Found(drains=drains(10.0)))
    assert found["exactly-once-to-debezium"].ratios == (10.0, 10.0)


def test_a_relay_that_was_never_drained_has_neither_rate_nor_ratio():
    assert lines(exactly_once=Found(drains=drains(100.0)), debezium=Found(drains=[None])).keys() == {
        "drain-exactly-once",
        "cpu-exactly-once",
        "cpu-exactly-once-servers",
        "cpu-exactly-once-together",
        "memory-exactly-once",
    }


@pytest.mark.parametrize(("alone", "met"), [(100.0, True), (112.0, False)])
def test_a_relay_that_was_slowed_down_beside_the_others_is_found_out(alone, met):
    line = lines(debezium=Found(drains=drains(90.0, 100.0, 110.0), alone=drains(alone)[0]))["debezium-to-alone"]
    assert (line.value, line.floor, line.met) == (100.0, alone, met)


def test_failovers_give_the_median_and_the_longest_and_all_that_came_twice_or_never():
    failovers = [Failover(seconds=seconds, duplicates=2, lost=1) for seconds in (1.0, 9.0, 2.0)]
    found = lines(goharvest=Found(failovers=failovers))
    assert [found[f"failover-goharvest{each}"].value for each in ("", "-longest", "-duplicates", "-lost")] == [
        2,
        9,
        6,
        3,
    ]


def live(*, behind=0, written=500.0):
    found = Live(p50=1.0, p99=2.0, behind=behind, written=written, idle_percent=0.5, idle_servers_percent=3.0)
    return lines(debezium=Found(live=found))


def test_a_relay_or_a_writer_that_does_not_keep_up_is_said_to_be_behind():
    assert live().keys().isdisjoint({"latency-500-debezium-behind", "latency-500-debezium-written"})
    assert live(behind=7)["latency-500-debezium-behind"].value == 7
    assert live(written=400.0)["latency-500-debezium-written"].value == 400.0


def test_the_report_is_a_list_in_the_form_of_the_benchmarks(tmp_path):
    found = list(results({"exactly-once": Found(drains=drains(90.0)), "debezium": Found(drains=drains(10.0))}))
    write(found, tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text())
    assert {"name", "value", "unit", "floor", "ratio", "target", "met"} <= read[0].keys()
    assert {each["name"]: each["met"] for each in read}["exactly-once-to-debezium"] is True


def test_what_fails_is_left_out_with_the_reason_and_an_interruption_ends_the_run():
    done = Comparison()

    def fail(error):
        raise error

    assert done.attempt("goharvest drain", lambda: fail(RuntimeError("only 3 of\n5 records came"))) is None
    assert done.attempt("debezium drain", lambda: 5) == 5
    assert done.left_out == {"goharvest drain": "RuntimeError: only 3 of 5 records came"}
    with pytest.raises(Interrupted):
        done.attempt("debezium drain", lambda: fail(Interrupted(2)))


def test_goharvest_is_left_out_without_go(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("go") is None
    with pytest.raises(LeftOutError, match="Go is not on the PATH"):
        Goharvest().build(tmp_path)


def test_debezium_is_left_out_where_a_jar_cannot_be_had(tmp_path, monkeypatch):
    def missing(jars, *_):
        raise StackError(f"the jars of {jars.name} could not be brought", evidence="not found", next_step="…")

    monkeypatch.setattr(debezium, "resolve", missing)
    with pytest.raises(LeftOutError, match="not found"):
        debezium.Debezium().build(tmp_path)


def test_a_run_in_which_nothing_can_be_built_starts_nothing_and_is_no_proof(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = compare([Goharvest()], Size(), tmp_path, alone=["goharvest"], say=lambda _: None, keep=lambda _: None)
    assert (done.found, list(done.left_out)) == ({}, ["goharvest"])
    assert not (tmp_path / "compare").exists()
    with pytest.raises(NothingChecked, match="Go is not on the PATH"):
        program.run(Size(), [Goharvest()], tmp_path, Console())


def test_watching_ends_when_all_have_come_and_nothing_more_does(monkeypatch):
    monkeypatch.setattr(progress, "_STILL_SECONDS", 0.1)
    seen, counts = [], iter([10, 10, 40, 40, 110, 112])
    samples = watch(lambda: next(counts, 112), 10, 100, first=lambda: seen.append("first"))
    assert ([each.records for each in samples], seen) == ([30, 100, 102], ["first"])


def test_watching_ends_when_nothing_comes(monkeypatch):
    monkeypatch.setattr(progress, "_STALLED_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="only 30 of 100"):
        watch(lambda: 40, 10, 100, first=lambda: None)


def test_a_rate_counts_from_the_first_look_that_found_records():
    assert rate([Sample(at=5.0, records=10), Sample(at=7.0, records=110)]) == 50.0
    with pytest.raises(RuntimeError, match="between two looks"):
        rate([Sample(at=5.0, records=10)])


def test_the_first_record_after_a_kill_is_one_committed_after_it():
    flow = Traffic(None, "", 500)
    flow.written, flow.arrivals = [1.0, 2.0, 3.0, 4.0], {0: [1.1, 9.0], 1: [5.0], 3: [6.0], 2: [7.0]}
    assert flow.await_first_after(2.5) == 6.0
    assert (flow.duplicates, flow.lost) == (1, 0)


def test_latencies_leave_the_first_seconds_out_at_whatever_rate_was_written():
    flow = Traffic(None, "", 500)
    flow.written = [number / 100 for number in range(601)]
    flow.arrivals = {number: [at + (9.0 if at <= 3.0 else 0.002)] for number, at in enumerate(flow.written)}
    assert percentiles(flow) == pytest.approx((2.0, 2.0))


def test_there_is_no_latency_of_what_never_came():
    flow = Traffic(None, "", 500)
    flow.written, flow.arrivals = [number / 100 for number in range(601)], {301: [9.0]}
    with pytest.raises(RuntimeError, match="only 1 of 300 records came"):
        percentiles(flow)


def test_the_page_says_what_was_left_out_and_shows_versions_and_configurations(tmp_path):
    found = list(results({"exactly-once": Found(drains=drains(9_000.0)), "debezium": Found(drains=drains(1_000.0))}))
    built = {name: Built(versions={name: "1.2"}, configuration=f"{name}.settings: 1") for name in found_names(found)}
    text = page.markdown(found, TITLES, built, {"goharvest": "Go is not on the PATH"}, ["how it was measured"])
    for part in ("Left out: goharvest: Go is not on the PATH", "debezium 1.2", "debezium.settings: 1", "| 9.0 |"):
        assert part in text
    file = tmp_path / "page.md"
    file.write_text("before <!-- comparison -->old<!-- end of comparison --> after")
    page.put(text, file)
    page.put(text, file)
    assert file.read_text().startswith("before <!-- comparison -->\nhow it")
    assert file.read_text().endswith("<!-- end of comparison --> after")
    assert "old" not in file.read_text()
    file.write_text("no marks")
    with pytest.raises(ValueError, match="no marks"):
        page.put(text, file)


def found_names(found):
    return [each.name.removeprefix("drain-") for each in found if each.name.startswith("drain-")]


def test_what_there_is_can_be_drawn(tmp_path):
    found = list(results({"exactly-once": Found(drains=drains(9_000.0))}))
    draw(found, TITLES, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_no_configuration_shows_a_password(tmp_path, monkeypatch):
    assert _data_source("host=h port=5 user=u password='a b\\'c' dbname=d") == (
        r"host='h' port='5' user='u' password='a b\'c' dbname='d' sslmode=disable"
    )
    for peer in (EXACTLY_ONCE, BARRIER):
        assert "POSTGRES" in peer.build(tmp_path).configuration
