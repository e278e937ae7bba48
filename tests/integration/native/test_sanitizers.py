"""The native tests once more, with a library that finds out when memory is misused, or anything undefined is done.

Among them are those of a queue that is full, of records that are refused, of producers that come and go, and of
processes that fork or end in the middle of a batch.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.handing_over import SANITIZERS, SOURCES

from harvest_lib.native import library
from infra.native_build import compile_library

pytestmark = pytest.mark.full

_OPTIONS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
_ADDRESS, _UNDEFINED = "libasan.so", "libubsan.so"
_PROGRAM = """
import os, pathlib, sys, pytest
from harvest_lib.native import library
library.FILE = pathlib.Path(sys.argv[1])
del os.environ["LD_PRELOAD"]  # it is not for Postgres and Kafka
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not long", *sys.argv[2:]]))
"""
_MODULES = sorted(each.name for each in Path(__file__).parent.glob("test_*.py") if each != Path(__file__))
_WRONG = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.harvest_summarize.argtypes = [ctypes.c_void_p, ctypes.c_int] * 2 + [ctypes.c_int, ctypes.c_void_p]
library.harvest_summarize(None, 0, None, 0, 0, ctypes.create_string_buffer(8))
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Return the library that finds out, what has to be loaded before it, and the folder of what it has found."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc here")
    folder = tmp_path_factory.mktemp("sanitized")
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in (_ADDRESS, _UNDEFINED)
    ]
    if not all(Path(each).is_absolute() for each in found):
        pytest.skip("gcc has no sanitizers here")
    file = folder / "hand_over.so"
    reason = compile_library(SOURCES, file, *_OPTIONS)
    assert not reason
    return file, " ".join(found), folder


def run(sanitized, program, *arguments):
    file, preloaded, folder = sanitized
    options = {
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={folder}/asan",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={folder}/ubsan",
        "PYTHONMALLOC": "malloc",  # so that what Python passes in is watched, too
        "LD_PRELOAD": preloaded,
        SANITIZERS: preloaded,
        library.VARIABLE: "",
    }
    command = [sys.executable, "-c", program, str(file), *arguments]
    done = subprocess.run(command, env=os.environ | options, capture_output=True, text=True, check=False)
    reports = [path.read_text() for path in folder.glob("*san.*")]
    for path in folder.glob("*san.*"):
        path.unlink()
    return done, reports


def test_what_is_wrong_is_found(sanitized):
    """Memory that is too short for what is written to it."""
    done, reports = run(sanitized, _WRONG)
    assert done.returncode != 0
    assert any("overflow" in report for report in reports)


@pytest.mark.long
@pytest.mark.timeout(1_100)
@pytest.mark.parametrize("module", _MODULES)
def test_no_memory_is_misused_and_nothing_undefined_is_done(sanitized, module):
    done, reports = run(sanitized, _PROGRAM, str(Path(__file__).parent / module))
    assert (done.returncode, reports) == (0, []), done.stdout[-3_000:] + done.stderr[-3_000:]
    assert " passed" in done.stdout
