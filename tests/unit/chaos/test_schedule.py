"""The choice of the next fault, over the runs of several modes."""

from contextlib import nullcontext

import pytest

from infra.chaos.faults import FAULTS, Fault
from infra.chaos.schedule import Schedule
from infra.chaos.system import SystemMode

pytestmark = pytest.mark.quick

MODES = [SystemMode(source=source, delivery="barrier") for source in ("mark", "snapshot", "transaction_id")]
FIRST, SECOND, LAST = MODES


def fault(**fields):
    return Fault(promise="", inject=lambda *_: nullcontext(), **fields)


def only(*modes):
    return lambda mode: mode in modes


def named(names, **fields):
    return {name: fault(**fields) for name in names}


def test_each_is_injected_before_any_is_injected_again_whatever_the_mode():
    schedule = Schedule(named("abcdefg"), MODES, 1, seed=1)
    drawn = [schedule.next(mode) for mode in (FIRST, FIRST, FIRST, SECOND, SECOND, LAST, LAST)]
    assert sorted(drawn) == list("abcdefg")
    again = [schedule.next(LAST) for _ in range(7)]
    assert sorted(again) == list("abcdefg")
    assert schedule.left_out() == {}


def test_what_can_be_injected_now_only_comes_before_what_can_wait():
    for seed in range(20):
        schedule = Schedule({**named("abcdefg"), "now": fault(fits=only(FIRST))}, MODES, 1, seed=seed)
        assert schedule.next(FIRST) == "now"


def test_what_was_injected_before_does_not_come_before_what_never_was():
    schedule = Schedule({**named("a"), "last": fault(fits=only(LAST))}, MODES, 1, seed=1)
    assert [schedule.next(FIRST), schedule.next(FIRST)] == ["a", "a"]
    assert schedule.next(LAST) == "last"


def test_the_seed_says_in_which_order():
    def order(seed):
        schedule = Schedule(named("abcdefg"), [FIRST], 1, seed=seed)
        return [schedule.next(FIRST) for _ in range(21)]

    assert order(3) == order(3)
    assert len({tuple(order(seed)[:7]) for seed in range(10)}) > 5
    assert order(3)[:7] != order(3)[7:14]


def test_what_was_never_injected_is_told_with_the_reason():
    faults = {"late": fault(), "large": fault(brokers=3), "other": fault(fits=only(SECOND))}
    schedule = Schedule(faults, [FIRST], 1, seed=1)
    assert schedule.left_out() == {
        "late": "there was no time left",
        "large": "takes 3 brokers",
        "other": "does not concern these modes",
    }
    assert {schedule.next(FIRST) for _ in range(3)} == {"late"}
    assert "late" not in schedule.left_out()


def test_where_no_fault_fits_there_is_none():
    assert Schedule({"other": fault(fits=only(SECOND))}, [FIRST], 1, seed=1).next(FIRST) is None


@pytest.mark.parametrize(
    ("mode", "by_kafka"),
    [
        (SystemMode(), False),
        (SystemMode(election="neli"), True),
        (SystemMode(delivery="sequenced"), False),
        (SystemMode(delivery="barrier"), True),
        (SystemMode(delivery="barrier", election="postgres"), False),
        (SystemMode(source="mark", delivery="sequenced"), True),
    ],
)
def test_the_leader_is_elected_as_a_configuration_says(mode, by_kafka):
    assert mode.elects_by_kafka is by_kafka
    has_coordinator = by_kafka or mode.delivery == "transactional"
    assert FAULTS["coordinator-killed"].fits(mode) is has_coordinator, (
        "a broker that coordinates nothing is like others"
    )
