"""A stretch of network that a test can break: TCP on 127.0.0.1, forwarded to one address."""

import enum
import socket
import threading
from contextlib import suppress
from typing import Self

_CHUNK_BYTES = 65536


class _Mode(enum.Enum):
    OPEN = enum.auto()
    CUT = enum.auto()
    HELD = enum.auto()


class TcpProxy:
    """A context manager; connect to `port`, and say by `forward_to` where that leads.

    `cut` ends every connection and each new one at once. `hold` leaves connections up, and takes new ones, while
    nothing comes through in either direction. `heal` undoes both.
    """

    def __init__(self) -> None:
        self._target: tuple[str, int] | None = None
        self._mode = _Mode.OPEN
        self._changed = threading.Condition()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def forward_to(self, host: str, port: int) -> None:
        """Send what is connected from now on to this address."""
        self._target = (host, port)

    def cut(self) -> None:
        """End all connections; new ones are ended before they carry anything."""
        self._become(_Mode.CUT)

    def hold(self) -> None:
        """Let nothing through: it comes late, all of it, in order, at `heal`."""
        self._become(_Mode.HELD)

    def heal(self) -> None:
        """Let everything through again."""
        self._become(_Mode.OPEN)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy-accept", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listener)
        self.cut()

    def _become(self, mode: _Mode) -> None:
        with self._changed:
            self._mode = mode
            pairs = list(self._pairs) if mode is _Mode.CUT else []
            self._changed.notify_all()
        for pair in pairs:
            _end(*pair)

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), name="proxy-serve", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target or ("", 0)) as server:
            pair = (client, server)
            with self._changed:
                if self._mode is _Mode.CUT:
                    return
                self._pairs.add(pair)
            for end in pair:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._pump, args=(server, client), name="proxy-back", daemon=True)
            back.start()
            self._pump(client, server)
            back.join()
            with self._changed:
                self._pairs.discard(pair)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Carry bytes one way until either side ends; then end both."""
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                with self._changed:
                    self._changed.wait_for(lambda: self._mode is not _Mode.HELD)  # the kernel holds what follows
                sink.sendall(data)
        _end(source, sink)


def _end(*ends: socket.socket) -> None:
    """Shut down; whoever serves a connection closes it, for only then may its number be used again."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
