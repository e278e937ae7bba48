"""Packages installed beside the project's own code: a bill of materials, and an audit for known vulnerabilities.

    python -m infra.supply_chain sbom [FILE]     CycloneDX 1.5, of all that the lock names, with hashes
    python -m infra.supply_chain audit           query the OSV database for each

Promises
- Nothing without a hash goes by in the lock. The environment and the bill are made from the lock alone.
- The audit fails for a known vulnerability, unless `tool.uv.audit` in `pyproject.toml` lists it, and there is no fix.
- If the database is unavailable, the audit prints a line about it within 20 seconds, and does not fail, so that a build
  needs no network; with HARVEST_AUDIT=required it fails.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harvest_lib.local_stack.state import default_state

ROOT = Path(__file__).parents[1]
SBOM = ROOT / "dist" / "sbom.cdx.json"

_FOUND = 1
_NOT_ASKED = 2
_TIMEOUT_SECONDS = 120
_AUDIT_SECONDS = 12
"""Time limit without HARVEST_AUDIT=required. A silent name server delays uv for longer than uv's own limits."""
_IMPATIENT = {"UV_HTTP_RETRIES": "1", "UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_TIMEOUT": "5"}


def main(arguments: Sequence[str]) -> int:
    if wrong := list(unhashed(tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8")))):
        _tell(f"error: uv.lock has no hash for {', '.join(wrong)}")
        return _FOUND
    match list(arguments):
        case ["sbom", *more] if len(more) <= 1:
            return _sbom(Path(more[0]) if more else SBOM)
        case ["audit", *options]:
            return _audit(options)
        case _:
            _tell(__doc__ or "")
            return 2


def unhashed(lock: Mapping[str, Any]) -> Iterator[str]:
    """Yield the packages of a lock that have no file, or a file without a hash, which could be replaced unnoticed."""
    for package in lock["package"]:
        files = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
        ours = "editable" in package["source"]
        if not ours and not (files and all(each.get("hash", "").startswith("sha256:") for each in files)):
            yield package["name"]


def _sbom(file: Path) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    form = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export", "--output-file", str(file.absolute()))
    made = _uv("export", "--quiet", "--frozen", "--all-extras", *form)
    _tell(made.stderr or f"{file}: written")
    return made.returncode


def _audit(options: Sequence[str]) -> int:
    required = os.environ.get("HARVEST_AUDIT") == "required"
    seconds = _TIMEOUT_SECONDS if required else _AUDIT_SECONDS
    asked = _uv("audit", "--frozen", "--preview-features", "audit-command", *options, seconds=seconds)
    if asked.returncode in {0, _FOUND} or not _is_unreached(asked.stderr):
        _tell(asked.stdout + asked.stderr)
        return asked.returncode
    causes = ["no reason given"]
    causes += [line.strip() for line in asked.stderr.splitlines() if line.strip() and "hint:" not in line]
    _tell(
        f"{'error' if required else 'warning'}: NOTHING WAS AUDITED, the database of vulnerabilities was not reached "
        f"({causes[-1].removeprefix('cause: ')}); run `make audit` where it can be, before each release"
    )
    return _NOT_ASKED if required else 0


def _is_unreached(said: str) -> bool:
    """Return True if uv's output has an address or `timed out`, which shows that the database did not answer."""
    return "://" in said or "timed out" in said


def _uv(*arguments: str, seconds: int = _TIMEOUT_SECONDS) -> "subprocess.CompletedProcess[str]":
    """Run the uv in the state folder or, if the folder has no uv, the uv on the `PATH`."""
    ours = default_state() / "uv" / "bin" / "uv"
    uv = str(ours) if ours.exists() else shutil.which("uv") or "uv"
    try:
        return subprocess.run(
            [uv, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env={**_IMPATIENT, **os.environ},
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(error.cmd, _NOT_ASKED, "", f"timed out after {seconds} s")


def _tell(text: str) -> None:
    sys.stderr.write(text.strip("\n") + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
