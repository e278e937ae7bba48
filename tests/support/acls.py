"""ACLs as data, for an admin client of Kafka's."""

import runpy
from pathlib import Path

from confluent_kafka.admin import AclBindingFilter

_EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "apply_acls.py"


def bindings(acls):
    """Return what an admin client takes for what `harvest grants kafka --json` prints."""
    return runpy.run_path(str(_EXAMPLE))["bindings"](acls)


def filter_of(binding):
    """Return the filter that finds this one."""
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
