"""A command on a terminal of its own, and what a person sees there."""

import os
import pty
import re
import select
import subprocess
import sys
import time

_ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]")


class Screen:
    """A process with a pseudo terminal as its standard streams; `text` is what it wrote, in order."""

    def __init__(self, arguments, *, environment, columns=80, rows=24):
        self._master, slave = pty.openpty()
        size = {"COLUMNS": str(columns), "LINES": str(rows), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harvest_lib.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, **size},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def read(self, seconds=0.2):
        """Take what is there, waiting at most so long for the first of it; return True if more may come."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            self.text += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # all ends of the terminal are closed
            return False
        return True

    def type(self, text):
        os.write(self._master, text.encode())

    def until(self, words, seconds=60):
        """Read until the words were written."""
        deadline = time.monotonic() + seconds
        while words not in self.plain:
            if not self.read() or time.monotonic() > deadline:
                raise AssertionError(f"never came: {words!r} in {self.plain[-2000:]!r}")

    def rest(self, seconds=60):
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + seconds
        while self.read() and time.monotonic() < deadline:
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    @property
    def plain(self):
        """The text that was written, without colours and movements."""
        return _ESCAPE.sub("", self.text)

    @property
    def lines(self):
        """The text on the terminal, line by line, once all of it was played."""
        lines, row, column = [""], 0, 0
        position = 0
        while position < len(self.text):
            escape = _ESCAPE.match(self.text, position)
            if escape:
                count = int(escape[1]) if escape[1] and escape[1].isdigit() else 1
                match escape[2]:
                    case "A":
                        row = max(0, row - count)
                    case "K":
                        lines[row] = "" if escape[1] == "2" else lines[row][:column]
                position = escape.end()
                continue
            character = self.text[position]
            position += 1
            match character:
                case "\n":
                    row += 1
                    if row == len(lines):
                        lines.append("")
                case "\r":
                    column = 0
                case _:
                    line = lines[row].ljust(column)
                    lines[row] = line[:column] + character + line[column + 1 :]
                    column += 1
        return [line.rstrip() for line in lines]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
