"""A project that is not this repository, as a user has it: a package with a `defs` folder and one outbox in it."""

import importlib
import sys
from contextlib import contextmanager

import yaml

PYPROJECT = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{package}"
"""
DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@contextmanager
def project(folder, package, attributes, post_processing=None):
    """Write it, load it, and return its definitions; the package is forgotten in the end."""
    place = folder / package / "defs" / "orders"
    place.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(package=package))
    for module in (folder / package, folder / package / "defs"):
        (module / "__init__.py").touch()
    (folder / package / "definitions.py").write_text(DEFINITIONS)
    declared = {"type": "dagster_harvest.components.OutboxComponent", "attributes": attributes}
    if post_processing is not None:
        declared["post_processing"] = {"assets": post_processing}
    (place / "defs.yaml").write_text(yaml.safe_dump(declared))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(f"{package}.definitions").defs()
    finally:
        sys.path.remove(str(folder))
        for name in [each for each in sys.modules if each.split(".")[0] == package]:
            del sys.modules[name]
