"""A file system that becomes full, and a server on it."""

from pathlib import Path

import pytest
from support.machine import require

from infra.chaos.disk import Disk
from infra.chaos.namespaces import mounts_lacking, own_mounts

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def possible():
    require(mounts_lacking(), "mount")


def test_it_is_full_until_it_is_emptied(tmp_path):
    with own_mounts():
        disk = Disk(tmp_path / "disk")
        file = tmp_path / "disk" / "file"
        file.write_bytes(b"kept")
        assert not disk.is_full()
        disk.fill()
        assert disk.is_full()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "more").write_bytes(bytes(100_000))
        assert file.read_bytes() == b"kept"
        disk.empty()
        assert not disk.is_full()


def test_nobody_else_sees_it(tmp_path):
    here = Path.cwd()
    with own_mounts():
        Disk(tmp_path / "disk")
        (tmp_path / "disk" / "file").touch()
    assert list((tmp_path / "disk").iterdir()) == []
    assert Path.cwd() == here
