"""No test of the tiers `quick` and `gate` is decided by the machine's clock, a fixed sleep, or a short deadline."""

from pathlib import Path
from textwrap import dedent, indent

import pytest
from support.time_in_tests import findings, report

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
CLOCK = "an assertion compares the machine's clock with a constant"
ABOUT = "an assertion compares the machine's clock approximately"
SLEEP = "a fixed sleep; wait for what has to come"
SHORT = "a deadline of 5 s; give at least 60 s"
DEADLINE = "Hypothesis has a deadline for each example"
SLOW_DRAWS = "Hypothesis minds that examples are drawn slowly: suppress `too_slow` too"
DICE = "Hypothesis draws other examples in each run; the profile decides that"


def test_time_decides_no_test():
    def read(paths):
        return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in sorted(paths)}

    helpers = {*TESTS.rglob("conftest.py"), *(TESTS / "support").rglob("*.py")}
    profiles = TESTS / "support" / "hypothesis_profiles.py"  # decides how examples are drawn
    wrong = report(read(TESTS.rglob("test_*.py")), read(helpers - {profiles}))
    assert not wrong, "\n".join(wrong)


def found(body, *, head="", marks=""):
    """Return the reasons found in a module with one test of this body."""
    source = f"{dedent(head)}\n{marks}\ndef test_it(self_made):\n{indent(dedent(body).strip(), '    ')}\n"
    return [finding.reason for finding in findings(source)]


@pytest.mark.parametrize(
    "body",
    [
        "began = time.monotonic()\nassert time.monotonic() - began < 2.0",
        "began = time.perf_counter()\nwork()\ntook = time.perf_counter() - began\nassert 0.1 <= took",
        "began = time.time()\nassert abs(time.time() - began) * 1000 < 5_000",
        "began = boot_seconds()\nassert boot_seconds() - began < LIMIT",
        "began = now()\nassert now() - began < 2 * PATIENCE",
        "began = now()\nassert now() - began < settings.PATIENCE",
        "began = datetime.now(UTC)\nassert datetime.now(UTC) - began < timedelta(seconds=2)",
        "waits = []\nwaits.append(time.monotonic())\nassert max(waits) - min(waits) < 1",
        "heard = []\nhear(lambda: heard.extend([1, time.monotonic()]))\nassert heard[1] - 7 < 1",
        "times = [time.monotonic() for _ in range(3)]\nassert all(b - a < 1 for a, b in pairwise(times))",
        "fake.at = time.monotonic()\nfirst, second = fake.at, time.monotonic()\nassert second - first > 0.5",
        "began = datetime.now(UTC)\nassert (datetime.now(UTC) - began).total_seconds() < 3",
        "assert ((took := time.monotonic() - began()) < 3) is expected",
        "def within():\n    began = time.monotonic()\n    assert time.monotonic() - began < 1",
    ],
)
def test_a_clock_against_a_constant_is_found(body):
    head = "from harvest_lib.clock import boot_seconds\nfrom time import monotonic as now\nLIMIT = 3\n"
    assert found(body, head=head) == [CLOCK]


def test_a_clock_that_is_compared_approximately_is_found():
    assert found("assert made.at == pytest.approx(time.time() + 3, abs=60)") == [ABOUT]


@pytest.mark.parametrize(
    "body",
    [
        "clock.now += 5\nassert clock() - began < 5",
        "before = time.time()\nassert before <= made.at <= time.time()",
        "record = make(at=time.time())\nassert len(record.keys) == 3",
        "deadline = time.monotonic() + 60\nassert time.monotonic() < deadline",
        "count = 3\nassert count < 5",
        "assert now() < 5",
        "print(time.monotonic() - began < 5)",
    ],
)
def test_other_comparisons_are_none(body):
    assert found(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(0.5)",
        "sleep(dice.uniform(0.0, 0.2))",
        "threading.Event().wait(0.5)",
        "for _ in range(3):\n    work()\n    time.sleep(0.1)",
        "with server:\n    time.sleep(1)",
    ],
)
def test_a_fixed_sleep_is_found(body):
    assert found(body) == [SLEEP]


def test_a_fixed_sleep_is_found_in_helpers_and_coroutines():
    head = "def settled(pool):\n    time.sleep(1)\nasync def soon():\n    await asyncio.sleep(1)\n"
    assert found("settled(1)", head=head) == [SLEEP, SLEEP]


@pytest.mark.parametrize(
    "body",
    [
        "while not done():\n    time.sleep(0.05)",
        "class Slow(Fake):\n    def write(self, batch):\n        time.sleep(0.05)",
        "def slowly():\n    time.sleep(0.05)\nthreading.Thread(target=slowly).start()",
        "done = threading.Event()\ndone.wait(60)",
        "clock.sleep = 5",
    ],
)
def test_polls_and_slow_fakes_are_no_fixed_sleeps(body):
    assert found(body) == []


def test_a_fake_of_the_module_may_be_slow():
    assert found("use(Slow())", head="class Slow:\n    def write(self, batch):\n        time.sleep(0.05)\n") == []


@pytest.mark.parametrize(
    "call",
    [
        'eventually(done, "it came", seconds=5)',
        "done.wait(5)",
        "assert done.wait(timeout=5)",
        "thread.join(5.0)",
        "future.result(SOON)",
        "future.exception(timeout=SOON)",
        "process.communicate(timeout=5)",
        'subprocess.run(["true"], timeout=2 * SOON - 5)',
        "harvest.await_stopped(5)",
        "server.await_ready(up, seconds=5)",
        "class Slow:\n    def write(self, batch):\n        self.gate.wait(5)",
        "socket.settimeout(5)",
        "lines.get(timeout=5)",
        "assert not thread.join(5)",
    ],
)
def test_a_short_deadline_is_found(call):
    assert found(call, head="SOON: float = 5\n") == [SHORT]


def test_an_assertion_is_no_poll():
    (reason,) = found("assert done.wait(0.5)")
    assert reason == "a deadline of 0.5 s; give at least 60 s"
    assert found("assert not done.wait(0)") == []


def test_a_test_in_a_class_is_no_fake():
    methods = "    def {}(self):\n        time.sleep(5)\n"
    head = "class TestIt:\n" + methods.format("test_it") + methods.format("slow")
    assert found("pass", head=head, marks="@pytest.mark.gate") == [SLEEP]


@pytest.mark.parametrize(
    "call",
    [
        'eventually(done, "it came")',
        'eventually(done, "it came", seconds=90)',
        "done.wait(60)",
        "done.wait(0.02)",
        "thread.join()",
        '"-".join(parts)',
        "future.result(given)",
        'subprocess.run(["true"], timeout=60)',
        "get(address, seconds=5)",
        "made(session_timeout_seconds=5)",
    ],
)
def test_long_deadlines_polls_and_settings_are_none(call):
    assert found(call) == []


@pytest.mark.parametrize(
    ("decorator", "reasons"),
    [
        ("@settings(deadline=500)", [DEADLINE]),
        ("@settings(deadline=timedelta(seconds=5))", [DEADLINE]),
        ("@hypothesis.settings(derandomize=False, deadline=None)", [DICE]),
        ("@settings(max_examples=20, derandomize=True)", []),
        ("@given(deadline=st.integers())", []),
        ("@settings(suppress_health_check=[HealthCheck.large_base_example])", [SLOW_DRAWS]),
        ("@settings(suppress_health_check=[HealthCheck.too_slow])", []),
        ("@settings(suppress_health_check=[*HealthCheck])", []),
        ("@settings(suppress_health_check=CHECKS)", []),
    ],
)
def test_settings_of_hypothesis(decorator, reasons):
    assert found("pass", marks=decorator) == reasons


@pytest.mark.parametrize("marks", ["@pytest.mark.full", "@pytest.mark.long", "@pytest.mark.gate\n@pytest.mark.e2e"])
def test_other_tests_are_not_examined(marks):
    body = "time.sleep(5)"
    assert found(body, marks=marks) == []
    head = "pytestmark = pytest.mark.quick\ndef test_other():\n    done.wait(5)\n"
    assert found(body, marks=marks, head=head) == [SHORT]
    assert found(body, head="pytestmark = [pytest.mark.full, pytest.mark.spark]") == []


def test_a_mark_of_its_own_brings_a_test_in():
    head = "pytestmark = pytest.mark.full\ndef helper():\n    time.sleep(5)\n"
    assert found("pass", head=head) == []
    assert found("pass", head=head, marks="@pytest.mark.gate") == [SLEEP]


def test_methods_are_tests_of_their_class():
    head = "class TestIt:\n    pytestmark = pytest.mark.full\n    def test_it(self):\n        done.wait(5)\n"
    assert found("pass", head=head) == []
    assert found("pass", head=head.replace("full", "quick")) == [SHORT]


def test_a_report_names_file_line_and_reason():
    source = "def test_it():\n    work()\n    time.sleep(1)\n"
    helper = "def wait(done):\n    done.join(5)\n"
    assert report({Path("tests/test_some.py"): source}, {Path("tests/support/some.py"): helper}) == [
        f"tests/test_some.py:3: {SLEEP}",
        f"tests/support/some.py:2: {SHORT}",
    ]


@pytest.mark.parametrize("source", ["", "import time\n", "@pytest.mark.full\ndef test_it():\n    time.sleep(1)\n"])
def test_a_report_that_examined_nothing_fails(source):
    with pytest.raises(ValueError, match="nothing was examined"):
        report({Path("tests/test_some.py"): source} if source else {}, {Path("tests/support/some.py"): "import time\n"})
