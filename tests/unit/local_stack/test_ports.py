"""Ports that another process took, or has chosen."""

import os
import socket
import subprocess
import sys

import pytest

from harvest_lib.local_stack import ports
from harvest_lib.local_stack.ports import keep_ports, occupant

pytestmark = pytest.mark.gate


def test_a_port_that_another_process_has_chosen_is_passed_over(tmp_path, monkeypatch):
    code = (
        "import sys; from pathlib import Path; from harvest_lib.local_stack.ports import keep_ports\n"
        f"print(keep_ports(Path({str(tmp_path / 'theirs.json')!r}), ['server'])['server'], flush=True)\n"
        "sys.stdin.read()"
    )
    spare = keep_ports(tmp_path / "spare.json", ["spare"])["spare"]
    (tmp_path / "spare.json").unlink()
    ports._chosen.discard(spare)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        theirs = int(other.stdout.readline())
        diced = iter([theirs - 10_000, spare - 10_000])
        monkeypatch.setattr(ports.secrets, "randbelow", lambda _end: next(diced))
        assert keep_ports(tmp_path / "ours.json", ["server"]) == {"server": spare}
        other.communicate()
    ports._chosen.discard(spare)
    diced = iter([theirs - 10_000])
    assert keep_ports(tmp_path / "more.json", ["server"]) == {"server": theirs}


def test_a_port_is_chosen_for_one_file_only(tmp_path, monkeypatch):
    one, another = keep_ports(tmp_path / "free.json", ["one", "another"]).values()
    ports._chosen.discard(another)
    diced = iter([one - 10_000, another - 10_000])
    monkeypatch.setattr(ports.secrets, "randbelow", lambda _end: next(diced))
    assert keep_ports(tmp_path / "ports.json", ["server"]) == {"server": another}


def test_ports_are_chosen_where_no_reservation_is_to_be_had(tmp_path, monkeypatch):
    monkeypatch.setattr(ports.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    ports._reservations.cache_clear()
    assert ports._reservations() is None
    assert keep_ports(tmp_path / "ports.json", ["server"])["server"] > 0
    ports._reservations.cache_clear()


def test_the_process_that_has_a_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = occupant(port)
        assert said.startswith(f"port {port} is taken by ")
        assert f"(process {os.getpid()})" in said
    assert occupant(port) == ""
