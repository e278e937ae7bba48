"""goharvest's program `reaper`, built by the Go client from the published module.

Nothing of it is kept here; the program stays in the state folder, its sources in the cache of downloads. v0.3.1 is its
last version, so the one a pool in production has most likely. From v0.1.0, whose documentation ours follows, it differs
where it matters in one thing: a failed mark takes a new leader id.
"""

import os
import shutil
import subprocess
from pathlib import Path

from harvest_lib.local_stack.state import download_cache, locked, make_folder

VERSION = "v0.3.1"
_MODULE = "github.com/obsidiandynamics/goharvest"
_BUILD_SECONDS = 540

# A module of our own needs this one version; `go install` would ask for the list of all versions as well.
_GO_MOD = f"""\
module reaper

go 1.21

require {_MODULE} {VERSION}
"""


class Unavailable(Exception):
    """goharvest cannot be built here; the message says why."""


def reaper(state: Path) -> Path:
    """Return the program, built at the first time. Raises Unavailable."""
    folder = make_folder(state / "goharvest" / VERSION)
    program = folder / "reaper"
    with locked(folder / "lock"):
        if not program.exists():
            _build(folder, program, cache=download_cache(state))
    return program


def _build(folder: Path, program: Path, *, cache: Path) -> None:
    if (go := shutil.which("go")) is None:
        raise Unavailable("Go is not on the PATH")
    (folder / "go.mod").write_text(_GO_MOD)
    made = folder / "reaper.new"
    command: list[str | Path] = [go, "build", "-mod=mod", "-modcacherw", "-o", made, f"{_MODULE}/cmd/reaper"]
    places = {"GOPATH": str(cache / "go"), "GOCACHE": str(cache / "go-build"), "CGO_ENABLED": "1"}
    try:
        subprocess.run(
            command, cwd=folder, env=os.environ | places, check=True, capture_output=True, timeout=_BUILD_SECONDS
        )
    except subprocess.CalledProcessError as error:
        said = " | ".join(error.stderr.decode(errors="replace").strip().splitlines()[-2:])
        raise Unavailable(f"goharvest {VERSION} cannot be built: {said}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"goharvest {VERSION} was not built within {_BUILD_SECONDS} s") from error
    made.replace(program)
