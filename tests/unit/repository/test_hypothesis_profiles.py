"""The profiles of Hypothesis: no deadline in any, and the same examples in each run of the gate."""

import pytest
from hypothesis import HealthCheck
from support.hypothesis_profiles import PROFILES, VARIABLE, chosen, examples

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_no_profile_measures_time(profile):
    assert profile.deadline is None
    assert HealthCheck.too_slow in profile.suppress_health_check


def test_the_gate_draws_the_same_in_each_run():
    assert PROFILES["gate"].derandomize
    assert not PROFILES["random"].derandomize
    assert PROFILES["random"].database is not None, "what failed could not be drawn again, as where CI is set"


def test_the_environment_chooses_the_profile_and_so_the_number_of_examples(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (chosen(), examples(gate=2, random=10)) == ("gate", 2)
    monkeypatch.setenv(VARIABLE, "random")
    assert (chosen(), examples(gate=2, random=10)) == ("random", 10)


def test_another_name_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "rnadom")
    with pytest.raises(ValueError, match="`rnadom`: one of gate, random"):
        chosen()
