"""The server of `--listen`: its answers, the clients that get them, and those that cannot hold it up."""

import logging
import socket
import threading

import pytest
from support.scraping import get, parsed, scrape
from support.waiting import eventually

from harvest_lib.errors import ConfigError
from harvest_lib.telemetry import server
from harvest_lib.telemetry.catalogue import Metric
from harvest_lib.telemetry.counts import KAFKA_ERRORS, Histogram
from harvest_lib.telemetry.health import Verdict
from harvest_lib.telemetry.server import Listener, parse_address

pytestmark = pytest.mark.quick

GAUGE = Metric(name="a_gauge", kind="gauge", help="Backlog \\ of\nlines.", labels=("topic",))
HISTOGRAM = Metric(name="a_duration_seconds", kind="histogram", help="Time.", labels=())
COUNTER = Metric(name="a_total", kind="counter", help="Counts.", labels=())


class Subject:
    """The subject that is served, as a test sets it."""

    def __init__(self):
        self.series = {("orders",): 1.0}
        self.is_healthy = True
        self.within = None
        self.asked = 0
        self.fails = None
        self.go_on = threading.Event()
        self.go_on.set()

    def readings(self):
        self.go_on.wait(60)
        if self.fails:
            raise self.fails
        histogram = Histogram((1.0,))
        histogram.observe(0.5)
        return [(GAUGE, self.series), (COUNTER, {(): 3}), (HISTOGRAM, histogram.read())]

    def live(self):
        return Verdict(self.is_healthy, "it turns")

    def ready(self):
        return Verdict(self.is_healthy, 'it says "no"')

    def progress(self, within_seconds):
        self.within = within_seconds
        self.asked += 1
        if self.fails:
            raise RuntimeError("a value of a record")
        return Verdict(self.is_healthy, "nothing waits")


@pytest.fixture
def subject():
    return Subject()


@pytest.fixture
def served(subject):
    with Listener("127.0.0.1:0", subject) as listener:
        yield listener.address


def connected(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 60)


def test_metrics_are_what_was_read(served):
    found = scrape(served)
    assert found["a_gauge", ("orders",)] == 1.0
    assert found["a_total", ()] == 3.0
    assert found["a_duration_seconds_bucket", ("1.0",)] == found["a_duration_seconds_count", ()] == 1.0
    assert found["process_resident_memory_bytes", ()] > 0
    assert ("harvest_postgres_connections_total", ("failed",)) in found


def test_openmetrics_is_there_for_who_asks_for_it(served):
    with connected(served) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n")
        answer = client.makefile("rb").read().decode()
    assert "application/openmetrics-text" in answer
    assert answer.endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/progress"])
def test_health_is_a_status_and_a_reason(served, subject, path):
    status, text = get(served, path)
    assert (status, '"healthy": true' in text) == (200, True)
    subject.is_healthy = False
    status, text = get(served, path)
    assert (status, '"healthy": false' in text) == (503, True)


def test_progress_is_asked_about_a_time(subject, monkeypatch):
    monkeypatch.setattr(server, "_LOOK_SECONDS", 3_600)
    with Listener("127.0.0.1:0", subject) as listener:
        eventually(lambda: subject.asked, "the listener has looked, and does not again")
        get(listener.address, "/progress")
        assert subject.within == 60.0
        get(listener.address, "/progress?seconds=7.5")
        assert subject.within == 7.5
        for wrong in ("0", "-1", "abc", "inf", "nan", ""):
            assert get(listener.address, f"/progress?seconds={wrong}")[0] == 400
        assert subject.within == 7.5


def test_progress_is_looked_at_without_a_question(subject, monkeypatch):
    """A stall is known from looks alone: the first question is answered by those before it."""
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.01)
    with Listener("127.0.0.1:0", subject):
        eventually(lambda: subject.asked > 1, "looked")
        subject.fails = RuntimeError
        failed = subject.asked
        eventually(lambda: subject.asked > failed + 2, "a look that fails is not the last one")
    stopped = subject.asked
    assert not any(each.name == "harvest-look" for each in threading.enumerate())
    assert subject.asked == stopped


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz", "/progress", "/", "/metricz"])
@pytest.mark.parametrize("is_healthy", [True, False])
def test_head_is_answered_as_get_without_the_body(served, subject, path, is_healthy):
    subject.is_healthy = is_healthy
    got, headers, body = ask(served, "GET", path)
    assert body
    head = ask(served, "HEAD", path)
    assert head[0] == got
    assert head[2] == b""
    if path != "/metrics":  # its length is that of its numbers
        assert head[1] == headers


def ask(address, method, path):
    """Return status, headers but the time, and all bytes that follow them."""
    with connected(address) as client:
        client.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    return status, [each for each in headers if not each.startswith("Date:")], body


def test_other_paths_say_which_there_are(served):
    assert get(served, "/")[0] == 200
    status, text = get(served, "/metricz")
    assert status == 404
    assert "/metrics" in text


HOSTILE = [
    'quote"back\\slash',
    "line\nfeed{}",
    "\ud800 half a pair",
    "\x00\x01\x7f",
    "x" * 100_000,
    "# HELP a_gauge no",
    '"} 1\na_gauge{topic="',
]


def test_whatever_a_label_holds_the_page_can_be_read(served, subject):
    subject.series = {(value,): float(place) for place, value in enumerate(HOSTILE)}
    status, text = get(served)
    assert status == 200
    found = {labels: value for (name, labels), value in parsed(text).items() if name == "a_gauge"}
    assert sorted(found.values()) == [float(place) for place in range(len(HOSTILE))]
    assert found['quote"back\\slash',] == 0.0
    assert found["line\nfeed{}",] == 1.0
    assert max(len(value) for (value,) in found) == 200


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, GeneratorExit])
def test_a_question_that_fails_is_logged_and_the_next_one_is_answered(served, subject, caplog, error):
    subject.fails = error("a value of a record")
    status, text = get(served)
    assert status == 500
    assert "a value of a record" not in text
    assert "scrape_failed" in caplog.messages
    subject.fails = None
    assert get(served)[0] == 200


def test_warnings_are_counted_by_their_event(served):
    log = logging.getLogger("harvest_lib.elsewhere")
    log.warning("batch_failed", extra={"records": 1})
    log.error("no name of an event: %s", 1)
    log.info("harvester_started")
    found = scrape(served)
    counted = {labels: value for (name, labels), value in found.items() if name == "harvest_log_events_total"}
    assert counted == {("batch_failed", "warning"): 1.0}


def test_errors_of_kafka_are_counted_by_their_kind(served):
    before = scrape(served).get(("harvest_kafka_errors_total", ("_TRANSPORT",)), 0.0)
    KAFKA_ERRORS.add("_TRANSPORT")
    assert scrape(served)["harvest_kafka_errors_total", ("_TRANSPORT",)] == before + 1


def test_clients_that_hang_hold_up_nobody(served):
    hanging = [connected(served) for _ in range(3 * server._MOST_CLIENTS)]
    try:
        hanging[-1].sendall(b"GET /metrics HT")  # and says no more
        assert get(served, seconds=60)[0] == 200
        hanging[0].settimeout(60)
        assert hanging[0].recv(1) == b"", "who was there longest is hung up on"
    finally:
        for each in hanging:
            each.close()


def test_an_answer_that_is_slow_holds_up_no_other(served, subject):
    subject.go_on.clear()
    slow = []
    thread = threading.Thread(target=lambda: slow.append(get(served, seconds=60)))
    thread.start()
    assert get(served, "/livez", seconds=60)[0] == 200
    assert slow == []
    subject.go_on.set()
    thread.join(60)
    assert slow[0][0] == 200


def test_a_client_that_says_nothing_is_let_go(subject, monkeypatch):
    monkeypatch.setattr(server._Handler, "timeout", 0.1)
    with Listener("127.0.0.1:0", subject) as listener:
        with connected(listener.address) as client:
            assert client.recv(1) == b""
        eventually(lambda: not listener._server._clients, "it is forgotten")


def test_a_stop_ends_the_thread_and_gives_the_port_back(subject):
    with Listener("127.0.0.1:0", subject) as listener:
        address = listener.address
        assert any(each.name == "harvest-listen" for each in threading.enumerate())
    assert not any(each.name == "harvest-listen" for each in threading.enumerate())
    with Listener(address, subject):
        assert get(address, "/livez")[0] == 200


def test_a_port_that_is_taken_is_an_error_with_the_next_step(served, subject):
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use") as caught:
        Listener(served, subject)
    assert "free port" in caught.value.next_step
    assert caught.value.exit_code == 3


def test_an_address_of_another_machine_is_an_error(subject):
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        Listener("192.0.2.1:0", subject)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", ("0.0.0.0", 9464)),  # noqa: S104 - what is meant
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9464", "", "host:", "host:-1", "host:65536", "::1:9464", "host:٣", "http://host:1"])
def test_no_addresses(text):
    with pytest.raises(ConfigError, match="no address"):
        parse_address(text)


def test_without_a_host_it_is_reached_by_every_address_and_says_so(subject):
    with Listener(":0", subject) as listener:
        host, _, port = listener.address.rpartition(":")
        assert host == "0.0.0.0"  # noqa: S104 - what is meant
        assert {get(f"127.0.0.{number}:{port}", "/livez")[0] for number in (1, 2)} == {200}


def test_ipv6(subject):
    try:
        listener = Listener("[::1]:0", subject)
    except ConfigError:
        pytest.skip("there is no IPv6 here")
    with listener:
        assert listener.address.startswith("[::1]:")
        assert get(listener.address, "/livez")[0] == 200
