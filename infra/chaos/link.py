"""A TCP proxy to a single address, which simulates network faults on demand.

with Links() as links:
    link = links.add()              # connect to link.port
    link.forward_to("127.0.0.1", 5432)
    link.cut()                      # ends all connections; a new connection ends at once
    link.hold(Direction.TO_SERVER)  # half open: connections stay, no byte passes in that direction
    link.delay(0.1)                 # seconds, in each direction
    link.heal()                     # undoes all faults; held bytes are delivered in order
"""

import asyncio
import enum
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Self

_CHUNK_BYTES = 65_536
_STOP_SECONDS = 5


class Direction(enum.Flag):
    """Direction of bytes on a link; a flag, so directions can be combined."""

    TO_SERVER = enum.auto()
    TO_CLIENT = enum.auto()
    BOTH = TO_SERVER | TO_CLIENT


_NEITHER = Direction(0)


class Link:
    """One proxied address, made by `Links.add`. Any thread may call its methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str) -> None:
        self._loop = loop
        self._target: tuple[str, int] | None = None
        self._inside: Callable[[], AbstractContextManager[None]] = nullcontext
        self._is_cut = False
        self._held = _NEITHER
        self._delay_seconds = 0.0
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener = socket.create_server((host, 0))
        self.host = host
        self.port: int = self._listener.getsockname()[1]

    def forward_to(
        self, host: str, port: int, *, inside: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Forward new connections to this address. `inside` returns a context in the network of this address."""
        self._target, self._inside = (host, port), inside

    @property
    def connections(self) -> int:
        """Number of open connections through this link."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """End all connections. New connections are closed before they carry a byte."""
        self._tell(is_cut=True)

    def hold(self, direction: Direction = Direction.BOTH) -> None:
        """Block these directions, and leave connections open."""
        self._tell(held=direction)

    def delay(self, seconds: float) -> None:
        """Delay each chunk of bytes by `seconds`, in each direction."""
        self._tell(delay_seconds=seconds)

    def heal(self) -> None:
        """Undo all faults of this link."""
        self._tell()

    def _tell(self, *, is_cut: bool = False, held: Direction = _NEITHER, delay_seconds: float = 0.0) -> None:
        async def become() -> None:
            self._is_cut, self._held, self._delay_seconds = is_cut, held, delay_seconds
            for writer in list(self._writers) if is_cut else ():
                writer.transport.abort()
            self._changed.set()
            self._changed = asyncio.Event()

        asyncio.run_coroutine_threadsafe(become(), self._loop).result(_STOP_SECONDS)

    async def listen(self) -> asyncio.Server:
        """Begin to accept connections, and return the server."""
        return await asyncio.start_server(self._serve, sock=self._listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut or self._target is None:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await self._connected(self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, to_server}
        self._writers |= ends
        try:
            await asyncio.gather(
                self._pump(reader, to_server, Direction.TO_SERVER), self._pump(from_server, writer, Direction.TO_CLIENT)
            )
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _connected(self, target: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with self._inside():
            near = socket.socket()  # a socket belongs to the network in which it was made
        try:
            near.setblocking(False)  # noqa: FBT003 - the standard library's
            await self._loop.sock_connect(near, target)
        except OSError:
            near.close()
            raise
        return await asyncio.open_connection(sock=near)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction) -> None:
        """Copy bytes from `source` to `sink` until either ends, then send the end of the stream to `sink`."""
        with suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)
                while direction in self._held:
                    await self._changed.wait()
                sink.write(data)
                await sink.drain()
        with suppress(OSError, RuntimeError):
            sink.write_eof()


class Links:
    """All links of a run, on an event loop in its own thread; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-links", daemon=True)
        self._servers: list[asyncio.Server] = []

    def add(self, host: str = "127.0.0.1") -> Link:
        """Return a new link, which listens in the network of the calling thread. It refuses connections until
        `forward_to` is called."""
        link = Link(self._loop, host)
        listening = asyncio.run_coroutine_threadsafe(link.listen(), self._loop)
        self._servers.append(listening.result(_STOP_SECONDS))
        return link

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
