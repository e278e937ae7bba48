"""Which fault strikes next, over the runs of several ways."""

from contextlib import nullcontext

from infra.chaos.faults import Fault
from infra.chaos.schedule import Schedule
from infra.chaos.system import Mode

WAYS = [Mode(source=source, delivery="barrier") for source in ("mark", "snapshot", "transaction_id")]
FIRST, SECOND, LAST = WAYS


def fault(**fields):
    return Fault(promise="", strike=lambda *_: nullcontext(), **fields)


def only(*ways):
    return lambda way: way in ways


def named(names, **fields):
    return {name: fault(**fields) for name in names}


def test_each_strikes_before_any_strikes_again_whatever_the_way():
    turns = Schedule(named("abcdefg"), WAYS, 1, seed=1)
    drawn = [turns.next(way) for way in (FIRST, FIRST, FIRST, SECOND, SECOND, LAST, LAST)]
    assert sorted(drawn) == list("abcdefg")
    again = [turns.next(LAST) for _ in range(7)]
    assert sorted(again) == list("abcdefg")
    assert turns.left_out() == {}


def test_what_may_strike_now_only_does_so_before_what_can_wait():
    for seed in range(20):
        turns = Schedule({**named("abcdefg"), "now": fault(fits=only(FIRST))}, WAYS, 1, seed=seed)
        assert turns.next(FIRST) == "now"


def test_what_was_struck_before_does_not_come_before_what_never_was():
    turns = Schedule({**named("a"), "last": fault(fits=only(LAST))}, WAYS, 1, seed=1)
    assert [turns.next(FIRST), turns.next(FIRST)] == ["a", "a"]
    assert turns.next(LAST) == "last"


def test_the_seed_says_in_which_order():
    def order(seed):
        turns = Schedule(named("abcdefg"), [FIRST], 1, seed=seed)
        return [turns.next(FIRST) for _ in range(21)]

    assert order(3) == order(3)
    assert len({tuple(order(seed)[:7]) for seed in range(10)}) > 5
    assert order(3)[:7] != order(3)[7:14]


def test_what_never_struck_is_told_with_the_reason():
    faults = {"late": fault(), "large": fault(brokers=3), "other": fault(fits=only(SECOND))}
    turns = Schedule(faults, [FIRST], 1, seed=1)
    assert turns.left_out() == {
        "late": "there was no time left",
        "large": "takes 3 brokers",
        "other": "does not concern these ways",
    }
    assert {turns.next(FIRST) for _ in range(3)} == {"late"}
    assert "late" not in turns.left_out()


def test_where_no_fault_fits_there_is_none():
    assert Schedule({"other": fault(fits=only(SECOND))}, [FIRST], 1, seed=1).next(FIRST) is None
