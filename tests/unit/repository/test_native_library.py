"""The library in C is in use wherever there is a C compiler: its tests skip without it, and nothing else says so."""

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from harvest_lib.native import implementation
from infra.native_build import compile_library

pytestmark = pytest.mark.quick

SOURCES = Path(__file__).parents[3] / "harvest_lib" / "native"


def compiler():
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the library is for Linux")
@pytest.mark.skipif(shutil.which(compiler()) is None, reason="there is no C compiler")
def test_the_library_compiles_and_is_the_one_in_use(tmp_path):
    assert compile_library(SOURCES, tmp_path / "hand_over.so", "-Wall", "-Werror") == ""
    found = implementation()
    assert (found.name, found.reason) == ("native", "the library in C was built"), "`make setup` builds it"
