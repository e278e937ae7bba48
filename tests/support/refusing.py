"""A way to a Kafka broker on which a produce request gets lost between the partition's old leader and its new one."""

import socket
import struct
import threading
from contextlib import suppress
from typing import Self

_PRODUCE, _FLEXIBLE, _TOPIC_IDS = 0, 9, 13
_NOT_LEADER_OR_FOLLOWER = 6


class RefusingProxy:
    """A context manager; connect to `port`, and say by `forward_to` which broker that leads to.

    After `refuse_next(n)` the broker does not see the next n first produce requests of a connection: they are answered
    as by one who does not lead the partition, once the request after them has been sent on, or after a while if none
    comes. That is what a producer sees that sends while leadership moves: its first request is too early, its second is
    not. The response to what was refused comes first, as the protocol has it.
    """

    def __init__(self) -> None:
        self._target = ("", 0)
        self._left = 0
        self._patience_seconds = 0.0
        self.refused = 0
        """Requests that were refused."""
        self.overtaken = 0
        """Refused requests that had another produce request on the wire behind them."""
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def forward_to(self, host: str, port: int) -> None:
        self._target = (host, port)

    def refuse_next(self, number: int = 1, *, patience_seconds: float = 1.0) -> None:
        """Refuse so many; `patience_seconds` is how long each waits for the request after it."""
        self._left, self.refused, self.overtaken = number, 0, 0
        self._patience_seconds = patience_seconds

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            held = _Held(client, self._patience_seconds)
            threading.Thread(target=self._carry_back, args=(server, held), daemon=True).start()
            with suppress(EOFError):
                while True:
                    frame = _read_frame(client)
                    if not self._refuse(frame, held):
                        server.sendall(frame)
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _refuse(self, frame: bytes, held: "_Held") -> bool:
        if struct.unpack_from(">h", frame, 4)[0] != _PRODUCE:
            return False
        with self._lock:
            if held.waits:
                self.overtaken += 1
                held.release_with_the_next_response()
                return False
            if self._left == 0:
                return False
            self._left -= 1
            self.refused += 1
        held.hold(_refusal(frame))
        return True

    @staticmethod
    def _carry_back(server: socket.socket, held: "_Held") -> None:
        with suppress(OSError, EOFError):
            while True:
                held.pass_on(_read_frame(server))


class _Held:
    """The response to a refused request, until it is its turn."""

    def __init__(self, client: socket.socket, patience_seconds: float) -> None:
        self._client, self._patience_seconds = client, patience_seconds
        self._response: bytes | None = None
        self._lock = threading.Lock()
        self._overtaken = False

    @property
    def waits(self) -> bool:
        return self._response is not None and not self._overtaken

    def hold(self, response: bytes) -> None:
        self._response, self._overtaken = response, False
        threading.Timer(self._patience_seconds, self._give_up).start()

    def release_with_the_next_response(self) -> None:
        self._overtaken = True

    def pass_on(self, frame: bytes) -> None:
        with self._lock:
            if self._overtaken:
                self._send()
            self._client.sendall(frame)

    def _give_up(self) -> None:
        with self._lock, suppress(OSError):
            if not self._overtaken:
                self._send()

    def _send(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            self._client.sendall(response)


def _read_frame(source: socket.socket) -> bytes:
    size = _read(source, 4)
    return size + _read(source, struct.unpack(">i", size)[0])


def _read(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = source.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def _refusal(frame: bytes) -> bytes:
    """Answer a produce request for one partition of one topic, as librdkafka's are: not the leader."""
    version, correlation, client_length = struct.unpack_from(">hih", frame, 6)
    assert _FLEXIBLE <= version < _TOPIC_IDS, f"produce requests of version {version} are not read here"
    at = 14 + max(0, client_length) + 1  # and no tagged fields
    length, at = _varint(frame, at)  # of the transactional id, plus one
    at += max(0, length - 1) + 2 + 4  # acks, timeout
    topics, at = _varint(frame, at)
    length, at = _varint(frame, at)
    topic = frame[at - 1 : at + length - 1]  # with its length, which is one byte
    partitions, at = _varint(frame, at + length - 1)
    assert topics == partitions == 2, "one topic, one partition"
    (partition,) = struct.unpack_from(">i", frame, at)
    nothing = struct.pack(">qqq", -1, -1, -1)  # base offset, time, start of the log
    answered = struct.pack(">ih", partition, _NOT_LEADER_OR_FOLLOWER) + nothing + b"\x01\x00\x00"
    body = struct.pack(">i", correlation) + b"\x00\x02" + topic + b"\x02" + answered + b"\x00" + bytes(4) + b"\x00"
    return struct.pack(">i", len(body)) + body


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
