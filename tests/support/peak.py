"""The most memory that a real `harvest run` has had at a time while it drains an outbox."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import yaml

from harvest_lib.native.library import VARIABLE

MEGABYTE = 1_000_000
_LOOK_SECONDS = 0.02


def peak_of_drain(
    folder: str | Path,
    harvest: Mapping[str, object],
    *,
    seconds: float = 150,
    impl: str = "",
    look: Callable[[int], object] = lambda _resident: None,
) -> int:
    """Run `harvest run --drain` with a configuration until it ends, and return its highest resident bytes. `impl` is
    what hands records over, if not the one of this process; `look` gets the resident bytes, again and again.

    They are the kernel's own figure of the process, so no peak falls between two looks. Fails with the log if the
    process does not end well.
    """
    config, log = Path(folder) / "harvest.yaml", Path(folder) / "harvest.log"
    config.write_text(yaml.safe_dump({"harvest": {"leadership": "solo", **harvest}}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARVEST_")}
    if impl := impl or os.environ.get(VARIABLE, ""):
        environment[VARIABLE] = impl
    command = [sys.executable, "-m", "harvest_lib.cli", "run", "-f", str(config), "--drain", "--log-format", "json"]
    highest, deadline = 0, time.monotonic() + seconds
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process:
        try:
            while process.poll() is None:
                highest = max(highest, _resident(process.pid, "VmHWM"))
                look(_resident(process.pid, "VmRSS"))
                if time.monotonic() > deadline:
                    raise AssertionError(f"the outbox was not drained in time: {log.read_text()[-2000:]}")
                time.sleep(_LOOK_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, log.read_text()[-2000:]
    assert highest, "nothing was measured"
    return highest


def _resident(pid: int, figure: str) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.search(rf"{figure}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def peak_of_pipeline(
    folder: str | Path,
    declaration: Mapping[str, object],
    *,
    is_done: Callable[[], bool],
    seconds: float = 1_200,
) -> int:
    """Run `harvest pipeline run` with a declaration until all is there, or it ends by itself; return its highest
    resident bytes. Fails with its log if it does not end well."""
    file, log = Path(folder) / "pipeline.yaml", Path(folder) / "pipeline.log"
    file.write_text(yaml.safe_dump(dict(declaration)))
    command = [sys.executable, "-m", "harvest_lib.cli", "pipeline", "run", "-f", str(file), "--log-format", "json"]
    highest, deadline, asked_at = 0, time.monotonic() + seconds, 0.0
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while process.poll() is None:
                highest = max(highest, _resident(process.pid, "VmHWM"))
                if time.monotonic() >= asked_at:
                    if is_done():
                        process.terminate()
                    asked_at = time.monotonic() + 1
                if time.monotonic() > deadline:
                    raise AssertionError(f"it did not end in time: {log.read_text()[-2000:]}")
                time.sleep(_LOOK_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, log.read_text()[-2000:]
    assert highest, "nothing was measured"
    return highest
