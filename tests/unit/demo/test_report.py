"""The demo's report and picture, from a small series whose answers are known."""

import copy
import io
import json
import re
import struct
from dataclasses import replace
from typing import Any
from uuid import UUID
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from harvest_lib.audit import AuditReport, Explanation, LeaderStatistics
from infra.demo import picture
from infra.demo.loading import Month
from infra.demo.page import html, write
from infra.demo.progress import Progress, View, summary
from infra.demo.report import Kill, Sample, Seen, document, whole
from infra.harvester import Lead
from infra.log_lines import JsonLines

pytestmark = pytest.mark.gate

BEGAN = 1_000_000.0
FIRST, SECOND, THIRD = (UUID(int=number << 96) for number in (1, 2, 3))

LEADS = tuple(
    Lead(harvester=harvester, leader_id=leader, at=BEGAN + at)
    for harvester, leader, at in ((2, FIRST, 1.0), (1, SECOND, 14.5), (3, THIRD, 30.0))
)

SEEN = Seen(
    began=BEGAN,
    wall_seconds=42.04,
    stop_seconds=0.5,
    samples=[
        Sample(at=BEGAN + at, committed=committed, in_kafka=in_kafka)
        for at, committed, in_kafka in (
            (1.0, 0, 0),
            (2.0, 600, 0),
            (3.0, 600, 400),
            (14.0, 1000, 400),
            (16.0, 1000, 700),
            (40.0, 1000, 1030),
        )
    ],
    kills=[
        Kill(at=BEGAN + 4.5, victim=LEADS[0], in_kafka=400, backlog=200),
        Kill(at=BEGAN + 20.0, victim=LEADS[1], in_kafka=700, backlog=300),
    ],
    leads=LEADS,
    months=[
        Month(batch="flights-2013-01", rows=600, seconds=0.5, at=BEGAN + 1.9),
        Month(batch="flights-2013-02", rows=400, seconds=1.5, at=BEGAN + 13.5),
    ],
)


def term(leader: UUID, records: int, first: float, last: float) -> LeaderStatistics:
    first_ms, last_ms = round((BEGAN + first) * 1000), round((BEGAN + last) * 1000)
    return LeaderStatistics(leader=leader, records=records, first_ms=first_ms, last_ms=last_ms)


AUDIT = AuditReport(
    records=1030,
    committed=1000,
    delivered=1000,
    pending=0,
    lost=0,
    unknown=0,
    purged=0,
    foreign=0,
    wrong_keys=0,
    other_contents=0,
    duplicates=30,
    adjacent_duplicates=30,
    separated_duplicates=0,
    unexplained_duplicates=0,
    reordered=0,
    order_violations=0,
    split_keys=0,
    explanations=(
        Explanation(old_leader=SECOND, new_leader=THIRD, count=20),
        Explanation(old_leader=FIRST, new_leader=SECOND, count=10),
    ),
    leaders=(term(FIRST, 410, 2.0, 4.0), term(SECOND, 310, 15.0, 19.0), term(THIRD, 310, 31.5, 34.0)),
)


EXACT = replace(AUDIT, records=1000, duplicates=0, adjacent_duplicates=0, explanations=())


def of_both(first: dict[str, Any], second: dict[str, Any] | None = None) -> dict[str, Any]:
    second = second or document(replace(SEEN, exactly_once=True), EXACT)
    return whole(first, second, versions={"Postgres": "18.1"}, wall_seconds=99.5)


@pytest.fixture
def act() -> dict[str, Any]:
    return copy.deepcopy(document(SEEN, AUDIT))


@pytest.fixture
def report(act: dict[str, Any]) -> dict[str, Any]:
    return of_both(act)


class TestNumbers:
    def test_promised_keys_are_there(self, act: dict[str, Any]) -> None:
        promised = {
            "committed": 1000,
            "delivered": 1000,
            "lost": 0,
            "reordered": 0,
            "order_violations": 0,
            "duplicates": 30,
            "unexplained_duplicates": 0,
            "wall_seconds": 42.0,
        }
        assert {name: act[name] for name in promised} == promised
        assert act["ok"] is True
        assert json.loads(json.dumps(act)) == act

    def test_take_over_lasts_from_the_kill_to_the_successors_first_record(self, act: dict[str, Any]) -> None:
        first, second = act["failovers"]
        assert (first["killed_at"], first["seconds"], first["elected_seconds"]) == (4.5, 10.5, 10.0)
        assert (first["harvester"], first["successor"]) == (2, 1)
        assert (second["seconds"], second["successor_leader"]) == (11.5, str(THIRD))
        assert act["failover_seconds"] == 11.5

    def test_a_record_of_the_victim_that_lands_after_the_kill_is_no_take_over(self) -> None:
        late = UUID(int=9)
        leads = (*LEADS, Lead(harvester=2, leader_id=late, at=BEGAN + 4.4))
        leaders = (AUDIT.leaders[0], term(late, 5, 4.6, 4.7), *AUDIT.leaders[1:])
        act = document(replace(SEEN, leads=leads), replace(AUDIT, leaders=leaders))
        assert act["failovers"][0]["seconds"] == 10.5

    def test_rates(self, act: dict[str, Any]) -> None:
        assert act["records_per_second"] == round(1000 / 32.0)
        assert act["working_records_per_second"] == round(1030 / (2.0 + 4.0 + 2.5))
        assert act["written_rows_per_second"] == 500

    def test_repeats_take_nothing_off_the_backlog(self, act: dict[str, Any]) -> None:
        assert [sample["backlog"] for sample in act["samples"]] == [0, 600, 200, 600, 310, 0]

    def test_throughput_is_that_of_the_last_second(self, act: dict[str, Any]) -> None:
        assert act["samples"][2]["records_per_second"] == 400

    def test_throughput_of_a_leader_ends_with_it(self) -> None:
        samples = [
            Sample(at=BEGAN + 4.0 + at, committed=900, in_kafka=in_kafka)
            for at, in_kafka in ((0.0, 0), (0.4, 400), (0.6, 400), (0.8, 400))
        ]
        series = document(replace(SEEN, samples=samples), AUDIT)["samples"]
        assert [sample["records_per_second"] for sample in series] == [0, 1000, 0, 0]


class TestVerdict:
    @pytest.mark.parametrize("name", ["lost", "reordered", "order_violations", "unexplained_duplicates", "unknown"])
    def test_any_anomaly_fails_the_demo(self, name: str) -> None:
        report = of_both(document(SEEN, replace(AUDIT, **{name: 1})))  # type: ignore[arg-type]
        assert report["ok"] is False
        assert f"1 {name.replace('_', ' ')}" in html(report)

    def test_a_duplicate_fails_the_act_that_delivers_exactly_once(self, act: dict[str, Any]) -> None:
        assert of_both(act)["ok"] is True
        report = of_both(act, document(replace(SEEN, exactly_once=True), AUDIT))
        assert (report["at_least_once"]["ok"], report["exactly_once"]["ok"], report["ok"]) == (True, False, False)
        assert "failed: 30 duplicates under exactly once." in html(report)

    def test_a_kill_without_a_take_over_fails_the_demo(self, act: dict[str, Any]) -> None:
        audit = replace(EXACT, leaders=AUDIT.leaders[:2])
        second = document(replace(SEEN, exactly_once=True), audit)
        assert (second["ok"], second["failover_seconds"]) == (False, None)
        assert "1 of 2 failovers seen under exactly once" in html(of_both(act, second))
        console = Console(width=140, record=True, file=io.StringIO())
        console.print(summary(of_both(act, second)))
        assert "never" in console.export_text()

    def test_a_single_kill_is_not_enough(self) -> None:
        single = document(replace(SEEN, kills=SEEN.kills[:1]), AUDIT)
        assert single["ok"] is False
        assert "1 of 2 failovers seen" in html(of_both(single))

    def test_an_empty_run_is_not_a_success(self) -> None:
        empty = replace(AUDIT, records=0, committed=0, delivered=0, duplicates=0, leaders=(), explanations=())
        report = of_both(document(replace(SEEN, samples=(), months=()), empty))
        assert report["ok"] is False
        assert picture.svg(report).startswith("<svg")


class TestShown:
    def test_table_explains_the_duplicates_in_the_order_of_terms(self, report: dict[str, Any]) -> None:
        console = Console(width=160, record=True, file=io.StringIO())
        console.print(summary(report))
        text = console.export_text()
        first = text.index("10 in flight when a leader was killed, between term 1 and 2")
        assert first < text.index("20 in flight when a leader was killed, between term 2 and 3")
        assert text.count("11.5 s") == 2
        assert "99.5 s" in text

    def test_files(self, report: dict[str, Any], tmp_path: Any) -> None:
        page, image, numbers = write(report, tmp_path)
        assert json.loads(numbers.read_text()) == report
        header = image.read_bytes()[:24]
        assert header[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", header[16:24]) == (1690, 754)
        assert image.stat().st_size < 200_000
        text = page.read_text()
        assert "none lost, none out of order" in text
        assert "$" not in text

    def test_page_loads_nothing_from_elsewhere(self, report: dict[str, Any]) -> None:
        assert re.findall(r"<(?:script|link|img|iframe)\b|\b(?:src|href)=[\"']?[^\"'#]", html(report)) == []

    def test_picture_takes_its_ink_from_the_page_and_marks_the_kills(self, report: dict[str, Any]) -> None:
        drawing = picture.svg(report)
        root = ET.fromstring(drawing)  # noqa: S314 - our own
        words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert words.count("SIGKILL") == 4
        assert {"2", "harvester 1", "3", "10.5 s", "11.5 s"} <= set(words), "short terms have their number alone"
        assert "currentColor" in drawing
        assert "#202631" not in drawing
        assert "width" not in root.attrib

    def test_plain_lines_where_there_is_no_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        view = View(
            writer="SQL", committed=9, delivered=4, backlog=5, records_per_second=2.0, months=1, leader=None, kills=0
        )
        with Progress(Console(force_terminal=False)) as progress:
            progress.say("something happened")
            progress.show(view)  # too soon after the beginning to be printed
        assert capsys.readouterr().out.strip().endswith("something happened")


def test_json_lines_come_once_and_whole(tmp_path: Any) -> None:
    log = tmp_path / "a.log"
    lines = JsonLines(log)
    assert lines.new() == []
    log.write_text('{"a": 1}\nnot json\n{"broken\n{"b": ')
    assert lines.new() == [{"a": 1}]
    with log.open("a") as file:
        file.write("2}\n")
    assert lines.new() == [{"b": 2}]
    assert lines.new() == []
