"""Packages installed beside the project's own code: a bill of materials, and an audit for known vulnerabilities.

    python -m infra.supply_chain sbom [FILE]     CycloneDX 1.5, of all that the lock names, with hashes
    python -m infra.supply_chain audit           query the OSV database for each

Promises
- Nothing without a hash goes by: neither in the lock, from which alone the environment is made, nor in the bill.
- The audit fails for a known vulnerability, unless `reviewed-vulnerabilities.txt` gives a reason, and there is no fix.
- If the database is unavailable, the audit prints a line about it within 20 seconds, and does not fail, so that a build
  needs no network; with HARVEST_AUDIT=required it fails.
"""

import json
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
REVIEWED = Path(__file__).with_name("reviewed-vulnerabilities.txt")
SBOM = ROOT / "dist" / "sbom.cdx.json"

_FOUND = 1
_NOT_ASKED = 2
_TIMEOUT_SECONDS = 120
_AUDIT_SECONDS = 12
"""Without HARVEST_AUDIT=required: a name server that is silent keeps uv longer than any of its own limits."""
_IMPATIENT = {"UV_HTTP_RETRIES": "1", "UV_HTTP_CONNECT_TIMEOUT": "3", "UV_HTTP_TIMEOUT": "5"}


def main(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["sbom", *more] if len(more) <= 1:
            return _sbom(Path(more[0]) if more else SBOM)
        case ["audit", *options]:
            return _audit(options)
        case _:
            _tell(__doc__ or "")
            return 2


def unhashed(lock: Mapping[str, Any]) -> Iterator[str]:
    """Return the packages of a lock of which a file may be put in another's place unnoticed."""
    for package in lock["package"]:
        files = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
        ours = "editable" in package["source"]
        if not ours and not (files and all(each.get("hash", "").startswith("sha256:") for each in files)):
            yield package["name"]


def incomplete(bill: Mapping[str, Any]) -> Iterator[str]:
    """Return the components of a bill that cannot be distinguished from other components of their name."""
    for component in bill["components"]:
        references = component.get("externalReferences", ())
        hashes = [each["alg"] for reference in references for each in reference.get("hashes", ())]
        named = component.get("purl") == f"pkg:pypi/{component['name']}@{component.get('version')}"
        if not named or "SHA-256" not in hashes:
            yield component["name"]


def reviewed(text: str) -> dict[str, str]:
    """Read the reviewed ids, with their reasons to stay. Raises ValueError for an id without a reason."""
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        known, _, reason = line.partition(" ")
        if not reason.strip():
            raise ValueError(f"{REVIEWED.name}: {known} stays without a reason")
        found[known] = reason.strip()
    return found


def _sbom(file: Path) -> int:
    made = _uv("export", "--frozen", "--all-extras", "--format", "cyclonedx1.5", "--preview-features", "sbom-export")
    if made.returncode:
        _tell(made.stderr)
        return made.returncode
    bill = json.loads(made.stdout)
    if wrong := [*incomplete(bill), *unhashed(_lock())]:
        _tell(f"error: without name, version or hash: {', '.join(wrong)}")
        return _FOUND
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    _tell(f"{file}: {len(bill['components'])} components")
    return 0


def _audit(options: Sequence[str]) -> int:
    if wrong := list(unhashed(_lock())):
        _tell(f"error: uv.lock has no hash for {', '.join(wrong)}")
        return _FOUND
    kept = reviewed(REVIEWED.read_text(encoding="utf-8"))
    ignored = [word for known in kept for word in ("--ignore-until-fixed", known)]
    required = os.environ.get("HARVEST_AUDIT") == "required"
    seconds = _TIMEOUT_SECONDS if required else _AUDIT_SECONDS
    asked = _uv("audit", "--frozen", "--preview-features", "audit-command", *ignored, *options, seconds=seconds)
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
    """Distinguish a database that did not answer, whose address is then named, from a wrong query."""
    return "://" in said or "timed out" in said


def _lock() -> dict[str, Any]:
    return tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))


def _uv(*arguments: str, seconds: int = _TIMEOUT_SECONDS) -> "subprocess.CompletedProcess[str]":
    """Run the uv that made the environment: the state folder's, unless a newer uv was there."""
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
