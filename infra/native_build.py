"""Builds the C library of `harvest_lib.native` with the package if there is a C compiler. Without a compiler the
library is left out, and Python does its work. Hatchling calls this module; `pyproject.toml` registers it.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # no package is being built: a test compiles the library
    BuildHookInterface = object

SOURCES = "harvest_lib/native"
LIBRARY = "harvest_lib/native/hand_over.so"


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc]  # hatchling has no types here
    """Compiles the C files of a folder into a library. The library is not linked with Python, so the same wheel fits
    every version of Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library. Add it to a wheel, or leave it in the source tree for an editable install."""
        is_editable = version == "editable"
        library = Path(self.root) / LIBRARY if is_editable else Path(mkdtemp()) / "hand_over.so"
        library.unlink(missing_ok=True)
        if reason := compile_library(Path(self.root) / SOURCES, library):
            self.app.display_warning(f"the native library was not built, Python does its work: {reason}")
        elif not is_editable:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"py3-none-{platform}")
            build_data["force_include"][str(library)] = LIBRARY


def compile_library(source: Path, library: Path, *options: str) -> str:
    """Compile a C file, or all C files of a folder. Return the reason of a failure, or an empty string."""
    if not sys.platform.startswith("linux"):
        return "it is for Linux alone"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    sources = sorted(source.glob("*.c")) if source.is_dir() else [source]
    fresh = library.with_suffix(".new")
    command = [*compiler, "-O2", "-shared", "-fPIC", "-pthread", *options, "-o", str(fresh), *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    if done.returncode:
        return done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
    fresh.replace(library)  # a process that has loaded the old library keeps it
    return ""
