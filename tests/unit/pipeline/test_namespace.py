"""Regular expressions of namespaces are those of Go's `regexp`, which the design of pipelines names."""

import importlib
import sys

import pytest

from harvest_lib.errors import PipelineError, install_hint
from harvest_lib.pipeline.namespace import compiled

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("expression", "namespace", "passes"),
    [
        ("[[:alpha:]]+", "public.flights", True),
        ("^[[:alpha:]]+$", "flights", True),
        ("^[[:alpha:]]+$", "flights2", False),
        ("^[[:^digit:]]+$", "flights", True),
        (r"^public\.flights$", "public.flights\n", False),
        (r"\Apublic\.flights\z", "public.flights", True),
        (r"^\Qa.b\E$", "a.b", True),
        (r"^\Qa.b\E$", "acb", False),
        (r"^\pL+$", "Flüge", True),
        (r"^\p{Greek}+$", "πτήσεις", True),
        (r"^\w+$", "Flüge", False),
        (r"^\d$", "٣", False),
        (r"^a\bü$", "aü", True),
        (r"^(?<table>a)(?P<rest>b)$", "ab", True),
        (r"^(?U)a+$", "aaa", True),
        (r"^\x{1F600}$", "😀", True),
        (r"a{,2}", "a{,2}", True),
        (r"a{,2}", "aa", False),
        (r"^\\C$", r"\C", True),
        (r"^\Q\C\E$", r"\C", True),
        (r"orders$", "shop.orders", True),
        (r"[xy]", "public.x", True),
        (r"[xy]", "shop.orders", False),
        (r"^$", "public.x", False),
        ("", "anything", True),
        (".*", "", True),
    ],
)
def test_what_go_finds_is_found(expression, namespace, passes):
    assert (compiled(expression).search(namespace) is not None) is passes


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        "(?=public)",
        "(?<!public)",
        r"(a)\1",
        r"a\Z",
        r"\u0041",
        r"(?x)a b",
        r"(?#why)a",
        r"(?P=name)",
        "a++",
        "a**",
        "a{1001}",
        "(?>a)",
        r"\C",
        r"\\\C",
        r"\QC\E\C",
        "\ud800",
        "(" * 2_000 + "a{1000}" * 2_000 + ")" * 2_000,
    ],
)
def test_what_go_refuses_is_refused_and_nothing_is_printed(expression, capfd):
    with pytest.raises(ValueError, match=r"is not a regular expression of Go's `regexp`: \S") as refused:
        compiled(expression)
    assert "b'" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_without_re2_the_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.delitem(sys.modules, "harvest_lib.pipeline.namespace")
    with pytest.raises(PipelineError, match="need the package google-re2") as refused:
        importlib.import_module("harvest_lib.pipeline.namespace")
    assert refused.value.next_step == install_hint("pipeline")
