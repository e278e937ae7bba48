"""The wheel of this project, installed as its users install it, with the packages of the lock."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def find_uv(parts):
    """Return the uv of the project, or that of the machine."""
    found = next((each for each in (str(parts / "uv/bin/uv"), shutil.which("uv")) if each and Path(each).exists()), "")
    assert found, "make setup brings uv"
    return found


def build(uv, folder, **variables):
    """Build the wheel into a folder, with more variables, and return it."""
    command = [uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT]
    subprocess.run(command, check=True, env={**os.environ, **variables})
    (built,) = folder.glob("*.whl")
    return built


def install(uv, wheel, venv, *extras):
    """Make an environment of the wheel and of what its extras name, and return its folder of programs."""
    wanted = [word for extra in extras for word in ("--extra", extra)]
    sync = [uv, "sync", "--quiet", "--frozen", "--no-install-project", "--no-default-groups", *wanted]
    subprocess.run(sync, check=True, cwd=ROOT, env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(venv)})
    python = str(venv / "bin" / "python")
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, wheel], check=True)
    return venv / "bin"


def install_newest(uv, wheel, venv, extra, *pins):
    """Make an environment of the wheel and an extra, of the newest packages that the pins allow, as pip would, without
    the lock; return its folder of programs."""
    subprocess.run([uv, "venv", "--quiet", "--python", ">=3.11,<3.13", venv], check=True)
    wanted = (f"{wheel}[{extra}]", *pins)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", *wanted], check=True)
    return venv / "bin"
