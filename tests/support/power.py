"""A disk that forgets: unsynced data may be there after the power went, wholly, partly or not at all.

It stands between the library and the operating system: files are written for real, and nothing is really synced.
Writes to one file since its last sync come to the disk in any combination, a part of one included, with zeros where
others were left out; changes to names of a folder since its last sync likewise, each wholly or not at all.
"""

import gc
import os
import shutil
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from unittest import mock

_MOST_DEAD = 400
_DEAD = set()
"""Numbers of handles whose process has ended. Each is closed by what is left of that, or at last here."""
MEMORY = next((folder for folder in [Path("/dev", "shm")] if folder.is_dir()), None)
"""Folder for files that a test recreates a thousand times and does not keep; None for the default one."""


@cache
def _nowhere():
    return os.memfd_create("nowhere")


def _free(handle):
    """Close a number, unless it was closed: then it may be another's."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(handle), os.fstat(_nowhere())):
            os.close(handle)


class Crash(BaseException):
    """The process ends here: nobody may catch it and clean up."""


class _File:
    def __init__(self, content=b""):
        self.content = bytearray(content)
        self.synced = bytes(content)
        self.since = []  # writes and cuts since

    def write(self, at, data):
        self.since.append((at, bytes(data)))
        _write(self.content, at, data)

    def cut(self, size):
        self.since.append((size, None))
        del self.content[size:]

    def sync(self):
        self.synced = bytes(self.content)
        self.since = []

    def after_power_loss(self, dice):
        found, mood = bytearray(self.synced), dice.choice(["all", "none", "first", "any", "any"])
        stop = dice.randrange(len(self.since) + 1)
        for number, (at, data) in enumerate(self.since):
            if mood == "none" or (mood == "first" and number > stop) or (mood == "any" and dice.random() < 0.5):
                continue
            part = (mood == "any" and dice.random() < 0.3) or (mood == "first" and number == stop)
            if data is None:
                del found[at:]
            else:
                _write(found, at, data[: dice.randrange(len(data) + 1)] if part else data)
        return bytes(found)


def _write(content, at, data):
    content.extend(bytes(max(0, at + len(data) - len(content))))
    content[at : at + len(data)] = data


def _folder(path):
    return str(Path(path).parent)


class Power:
    """The files below a folder. `crash_after(n)` ends the process at the call after n that would change something."""

    def __init__(self, root, dice):
        self.root = str(root)
        self.dice = dice
        self.calls = 0
        self._left = None
        self._names = {}  # path -> file, as it is now
        self._kept = {}  # folder -> its paths and files when it was last synced
        self._since = {}  # folder -> what was done to names since
        self._handles = {}
        self._real = {name: getattr(os, name) for name in _PATCHED}

    @contextmanager
    def on(self):
        """Stand between."""
        patches = [mock.patch.object(os, name, getattr(self, name)) for name in _PATCHED]
        for patch in patches:
            patch.start()
        try:
            yield self
        finally:
            for patch in patches:
                patch.stop()
            self.kill()

    def crash_after(self, calls):
        self._left = calls

    def kill(self):
        """End the process: its handles lead nowhere, its writes stay.

        Their numbers stay taken. An object left of the process, as a generator that was never ended, closes them when
        it is collected: another's by then, were they free.
        """
        self._left = None
        for handle in list(self._handles):
            del self._handles[handle]
            os.dup2(_nowhere(), handle, inheritable=False)
            _DEAD.add(handle)
        if len(_DEAD) > _MOST_DEAD:
            gc.collect()
            while _DEAD:
                _free(_DEAD.pop())

    def lose(self):
        """Lose power, and come back."""
        self.kill()
        for folder in [path for path, file in self._names.items() if file is None]:
            kept = dict(self._kept[_folder(folder)])
            for change in self._since.get(_folder(folder), []):
                if self.dice.random() < 0.5:
                    change(kept)
            if folder not in kept:
                self._forget(folder)
        for folder, kept in self._kept.items():
            for path in [path for path, file in self._names.items() if _folder(path) == folder and file]:
                del self._names[path]
                self._real["unlink"](path)
            names, since = dict(kept), self._since.get(folder, [])
            stop, in_order = self.dice.randrange(len(since) + 1), self.dice.random() < 0.5
            for number, change in enumerate(since):
                if number < stop if in_order else self.dice.random() < 0.5:
                    change(names)
            for path, file in names.items():
                if file is None:
                    continue
                content = file.after_power_loss(self.dice)
                Path(path).write_bytes(content)
                self._names[path] = _File(content)
            self._kept[folder] = {path: self._names[path] for path in names if path in self._names}
            self._since[folder] = []

    def _forget(self, folder):
        for path in [path for path in self._names if path == folder or path.startswith(f"{folder}/")]:
            del self._names[path]
        for path in [path for path in self._kept if path == folder or path.startswith(f"{folder}/")]:
            del self._kept[path]
            self._since.pop(path, None)
        shutil.rmtree(folder, ignore_errors=True)

    # -- the system's calls

    def open(self, path, flags, mode=0o777, **more):
        path = str(path)
        if not path.startswith(self.root):
            return self._real["open"](path, flags, mode, **more)
        if Path(path).is_dir():
            handle = self._real["open"](path, flags, mode, **more)
            self._handles[handle] = path
            return handle
        new = path not in self._names
        if flags & os.O_CREAT and (new or flags & os.O_TRUNC):
            self._count()
        handle = self._real["open"](path, flags, mode, **more)
        if new:
            file = self._names[path] = _File()
            self._changed(path, lambda names: names.__setitem__(path, file))
        elif flags & os.O_TRUNC:
            self._names[path].cut(0)
        self._handles[handle] = self._names[path]
        return handle

    def close(self, handle):
        self._handles.pop(handle, None)
        self._real["close"](handle)

    def pwrite(self, handle, data, at):
        file = self._handles.get(handle)
        if file is not None:
            try:
                self._count()
            except Crash:
                if self._left == -1:
                    part = bytes(data)[: self.dice.randrange(len(data) + 1)]
                    self._real["pwrite"](handle, part, at)
                    file.write(at, part)
                    self._left = -2
                raise
            file.write(at, data)
        return self._real["pwrite"](handle, data, at)

    def ftruncate(self, handle, size):
        if handle in self._handles:
            self._count()
            self._handles[handle].cut(size)
        self._real["ftruncate"](handle, size)

    def truncate(self, path, size):
        if str(path) in self._names:
            self._count()
            self._names[str(path)].cut(size)
        self._real["truncate"](path, size)

    def fdatasync(self, handle):
        found = self._handles.get(handle)
        if found is None:
            self._real["fdatasync"](handle)
            return
        self._count()
        if isinstance(found, _File):
            found.sync()
        else:
            self._kept[found] = {path: file for path, file in self._names.items() if _folder(path) == found}
            self._since[found] = []

    fsync = fdatasync

    def mkdir(self, path, *arguments, **more):
        self._real["mkdir"](path, *arguments, **more)
        if str(path).startswith(self.root):
            self._names[str(path)] = None
            self._kept[str(path)] = {}
            self._changed(str(path), lambda names: names.__setitem__(str(path), None))

    def replace(self, source, target, **more):
        source, target = str(source), str(target)
        if source in self._names:
            self._count()
            self._names[target] = file = self._names.pop(source)

            def change(names):
                names.pop(source, None)
                names[target] = file

            self._changed(source, change)
        self._real["replace"](source, target, **more)

    def unlink(self, path, **more):
        if str(path) in self._names:
            self._count()
            del self._names[str(path)]
            self._changed(str(path), lambda names: names.pop(str(path), None))
        self._real["unlink"](path, **more)

    def _changed(self, path, change):
        folder = _folder(path)
        self._kept.setdefault(folder, {})
        self._since.setdefault(folder, []).append(change)

    def _count(self):
        self.calls += 1
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            raise Crash


_PATCHED = ["open", "close", "pwrite", "ftruncate", "truncate", "fdatasync", "fsync", "mkdir", "replace", "unlink"]
