"""A broker that restarts again and again: before it is registered it answers, and names no broker."""

import socket
import struct
import threading

API_VERSIONS, METADATA = 18, 3
UNSUPPORTED_VERSION, LEADER_NOT_AVAILABLE = 35, 5
CLUSTER = b"\x00\x01c"


class RestartingBroker:
    """Answers requests for versions and metadata. `asked` counts the latter, of which every `nth` comes too early."""

    def __init__(self, nth):
        self._nth = nth
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.servers = f"127.0.0.1:{self.port}"
        self.asked = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as requests:
            while len(size := requests.read(4)) == 4:
                request = requests.read(*struct.unpack(">i", size))
                key, version, correlation, length = struct.unpack_from(">hhih", request)
                if key == API_VERSIONS:
                    body = struct.pack(">hi", UNSUPPORTED_VERSION if version else 0, 2)
                    body += struct.pack(">hhh", METADATA, 0, 2) + struct.pack(">hhh", API_VERSIONS, 0, 0)
                else:
                    self.asked += 1
                    body = self._metadata(request[10 + max(0, length) :])
                connection.sendall(struct.pack(">ii", 4 + len(body), correlation) + body)

    def _metadata(self, topics):
        (count,) = struct.unpack_from(">i", topics)
        place, found = 4, b""
        for _ in range(max(0, count)):
            (length,) = struct.unpack_from(">h", topics, place)
            name = topics[place : place + 2 + length]
            place += 2 + length
            found += struct.pack(">h", LEADER_NOT_AVAILABLE) + name + b"\0" + struct.pack(">i", 0)
        brokers = struct.pack(">i", 0) + CLUSTER + struct.pack(">i", -1)
        if self.asked % self._nth:
            named = struct.pack(">iih9sih", 1, 1, 9, b"127.0.0.1", self.port, -1)
            brokers = named + CLUSTER + struct.pack(">i", 1)
        return brokers + struct.pack(">i", max(0, count)) + found
