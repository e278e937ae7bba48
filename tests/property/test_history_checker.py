"""A correct system's histories keep their promise, whatever goes wrong around it; broken ones are found by name."""

from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.failover_mutations import FAILED_OVER, IN_CHECKPOINTS, NOT_PIPELINED
from support.history_mutations import ANY, TRANSACTIONAL, broken
from support.recreate_mutations import RECREATES
from support.well_formed import Shape, history

from infra.chaos.checker import Promise, check
from infra.chaos.history.lines import from_line, to_line

pytestmark = pytest.mark.gate

PROMISES = {
    "barrier": Promise(delivery="at_least_once"),
    "pipelined": Promise(delivery="at_least_once", barrier=False),
    "transactional": Promise(delivery="transactional"),
}
MUTATIONS = [(mutation, name) for mutation in ANY for name in PROMISES]
MUTATIONS += [(mutation, "transactional") for mutation in TRANSACTIONAL]
MUTATIONS += [(mutation, name) for mutation in RECREATES for name in PROMISES]
MUTATIONS += [(mutation, name) for mutation in FAILED_OVER for name in PROMISES]
MUTATIONS += [(mutation, name) for mutation in NOT_PIPELINED for name in ("barrier", "transactional")]
MUTATIONS += [(mutation, "transactional") for mutation in IN_CHECKPOINTS]
LACKING = {*FAILED_OVER, *NOT_PIPELINED, *IN_CHECKPOINTS}
SEEDS = st.integers(0, 2**32)
TROUBLE = st.sampled_from([0.0, 0.1, 0.3, 0.6])
RECREATED = st.sampled_from([0.0, 0.0, 0.1, 0.5])
"""Probability that the topic is deleted and recreated; mostly never."""


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES)
@given(seed=SEEDS, trouble=TROUBLE, keys=st.integers(1, 6), page=st.integers(1, 9), recreated=RECREATED)
def test_a_correct_system_keeps_its_promise(promise, seed, trouble, keys, page, recreated):
    shape = Shape(promise=promise, trouble=trouble, keys=keys, page=page, recreated=recreated)
    verdict = check(history(seed, shape), promise)
    assert verdict.ok, [finding for finding in verdict.findings if not finding.explained]
    if promise.transactional or not trouble:
        assert not verdict.explained


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES)
@given(seed=SEEDS, trouble=TROUBLE, keys=st.integers(1, 6), page=st.integers(1, 9))
def test_a_correct_system_keeps_its_promise_over_failovers(promise, seed, trouble, keys, page):
    shape = Shape(promise=promise, trouble=trouble, keys=keys, page=page, failovers=0.3)
    verdict = check(history(seed, shape), promise)
    assert verdict.ok, [finding for finding in verdict.findings if not finding.explained]


@pytest.mark.gate(cases=8)
@pytest.mark.parametrize(("mutation", "promised"), MUTATIONS, ids=lambda value: getattr(value, "__name__", value))
@settings(max_examples=20)
@given(seed=SEEDS, trouble=TROUBLE)
def test_a_broken_system_is_found_out(mutation, promised, seed, trouble):
    promise = PROMISES[promised]
    shape = Shape(
        promise=promise,
        trouble=trouble,
        recreated=0.2 if mutation in RECREATES else 0.0,
        failovers=0.3 if mutation in LACKING else 0.0,
    )
    events = list(history(seed, shape))
    result = broken(mutation, events, Random(seed))
    assume(result is not None)
    names, changed = result
    assert names & check(changed, promise).unexplained.keys(), mutation.__name__


@given(seed=SEEDS, promise=st.sampled_from(list(PROMISES.values())), recreated=RECREATED)
def test_a_history_comes_back_from_its_lines(seed, promise, recreated):
    events = list(history(seed, Shape(promise=promise, writes=4, recreated=recreated, failovers=0.2)))
    assert [from_line(to_line(event)) for event in events] == events
