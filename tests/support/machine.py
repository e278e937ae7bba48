"""Requirements of tests on the machine beside Python, and the skip or failure where one is lacking."""

import os
import shutil
import subprocess

import pytest

from infra.chaos.namespaces import has_program


def require(lacking, program):
    """Skip the test where something is lacking, and name it. In CI a program has to be there where set-up installs it;
    rights that the kernel grants to root only are not ours to install."""
    if lacking is None:
        return
    may_install = os.geteuid() == 0 and shutil.which("apt-get") is not None
    if os.environ.get("CI") and may_install and not has_program(program):
        pytest.fail(lacking)
    pytest.skip(lacking)


def promtool(*arguments):
    """Run Prometheus' own tool."""
    require(
        None if shutil.which("promtool") else "there is no promtool: Debian's package `prometheus` has it", "promtool"
    )
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
