"""The HTTP server of `--listen`: `/metrics`, `/livez`, `/readyz`, `/progress`.

Promises
- No client delays another client. Each connection has a thread of its own, and each send or receive on a connection may
  take five seconds. If 16 connections are open, a new connection closes the oldest.
- An unusable address is reported as an error before the process starts its work.
- The server answers, and reports the outage, while Postgres or Kafka is unavailable.
- Progress is checked every five seconds even without requests, so that the first request to `/progress` gets a full
  answer.
"""

import errno
import json
import logging
import math
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import parse_qs, urlsplit

from harvest_lib.errors import ConfigError
from harvest_lib.process import threads
from harvest_lib.telemetry.catalogue import Readings
from harvest_lib.telemetry.health import DEFAULT_WITHIN_SECONDS, Health, Verdict
from harvest_lib.telemetry.process import ProcessReadings

_log = logging.getLogger(__name__)

_MOST_CLIENTS = 16
_CLIENT_SECONDS = 5.0
"""Maximum wait for a client to send its next bytes, or to read the answer."""
_LOOK_SECONDS = 5.0
"""Interval of the checks of progress without a request. The checks run because only a comparison with an earlier check
shows a stall."""
_AGAIN_SECONDS = 1.0
_HIGHEST_PORT = 65_535
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
_PATHS = "/metrics\n/livez\n/readyz\n/progress?seconds=60\n"
_HINTS = {
    errno.EADDRINUSE: "name a free port; `ss -ltnp` shows the process that has this port",
    errno.EADDRNOTAVAIL: "name an address of this machine, such as 127.0.0.1 or 0.0.0.0",
    errno.EACCES: "name a port above 1023",
}


class Subject(Readings, Health, Protocol):
    """A process, or part of it, whose metrics and health are served."""


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[IPV6]:PORT`, or `:PORT` for every IPv4 address. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not port.isascii()
        or not port.isdigit()
        or int(port) > _HIGHEST_PORT
        or (":" in host and not is_bracketed)
    ):
        raise ConfigError(
            f"{text!r} is no address to listen on",
            field="listen",
            next_step="write HOST:PORT, such as 127.0.0.1:9464, or [::1]:9464",
        )
    return bare or "0.0.0.0", int(port)  # noqa: S104 - without a host it listens on every address


class Listener:
    """Serves a subject from the construction of this object until `stop`, or the exit of the context."""

    def __init__(self, address: str, subject: Subject) -> None:
        """Listen on `address`, `HOST:PORT`. Raises ConfigError if the address is not usable."""
        host, port = parse_address(address)
        from harvest_lib.telemetry.exposition import Collector, page  # noqa: PLC0415 - only with a listener

        process = ProcessReadings()
        self._server = _serve(host, port, subject, page(Collector(subject, process)))
        self._stopping = threading.Event()
        self._open = ExitStack()
        self._open.enter_context(process.counting())
        self._thread = threads.repeat(
            "harvest-listen",
            lambda: self._server.serve_forever(poll_interval=0.5),
            stopping=self._stopping,
            pause_seconds=lambda: _AGAIN_SECONDS,
        )
        self._looking = threads.repeat(
            "harvest-look",
            lambda: subject.progress(DEFAULT_WITHIN_SECONDS),
            stopping=self._stopping,
            pause_seconds=lambda: _LOOK_SECONDS,
            on_error=lambda _: None,  # a request fails in the same way, and logs the error
        )
        _log.info("telemetry_served", extra={"address": self.address})

    @property
    def address(self) -> str:
        """Return the bound `HOST:PORT`, with the chosen port if port 0 (any free port) was requested."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def stop(self) -> None:
        """Stop listening, and close all connections. Repeated calls have no effect."""
        self._server.shutdown()  # called first: if the thread ended before it served, this call would never return
        self._stopping.set()
        self._server.server_close()
        self._server.hang_up(0)
        self._thread.join()
        self._looking.join()
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _serve(host: str, port: int, subject: Subject, render: Callable[[str], tuple[bytes, str]]) -> "_Server":
    try:
        return _Server(host, port, subject, render)
    except (OSError, OverflowError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {said}",
            field="listen",
            next_step=_HINTS.get(getattr(error, "errno", None) or 0, "name an address and a port of this machine"),
        ) from error


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    allow_reuse_port = False  # if True, two processes could listen on the port and share the requests

    def __init__(self, host: str, port: int, subject: Subject, render: Callable[[str], tuple[bytes, str]]) -> None:
        self.subject, self.render = subject, render
        self._clients: dict[Any, None] = {}  # the oldest first
        self._clients_lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's method would resolve the name of the host, which may take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "harvest", 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.hang_up(_MOST_CLIENTS - 1)
        with self._clients_lock:
            self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def hang_up(self, most: int) -> None:
        """Close the oldest connections until `most` are left."""
        with self._clients_lock:
            while len(self._clients) > most:
                oldest = next(iter(self._clients))
                del self._clients[oldest]
                with suppress(OSError):  # the connection's thread then ends by itself, and closes it
                    oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        # That a client closed its connection is not an error of the server.
        _log.debug("client_left", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_SECONDS
    server_version, sys_version = "harvest", ""
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        subject = self.server.subject
        try:
            match url.path:
                case "/metrics":
                    body, content_type = self.server.render(self.headers.get("Accept", ""))
                    self._answer(HTTPStatus.OK, body, content_type)
                case "/livez":
                    self._answer_verdict(subject.live())
                case "/readyz":
                    self._answer_verdict(subject.ready())
                case "/progress":
                    within = _seconds(url.query)
                    if within is None:
                        self._answer(HTTPStatus.BAD_REQUEST, b"`seconds` is a number above 0\n", _TEXT)
                    else:
                        self._answer_verdict(subject.progress(within))
                case "/":
                    self._answer(HTTPStatus.OK, _PATHS.encode(), _TEXT)
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, _PATHS.encode(), _TEXT)
        except (OSError, TimeoutError):
            raise
        except BaseException:  # noqa: BLE001 - a failing request must not end the server
            _log.exception("scrape_failed")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log: scrape_failed\n", _TEXT)

    def do_HEAD(self) -> None:
        """Answer like GET, without the body, because some load balancers send HEAD."""
        self.do_GET()

    def _answer_verdict(self, verdict: Verdict) -> None:
        status = HTTPStatus.OK if verdict.is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
        said = json.dumps({"healthy": verdict.is_healthy, "reason": verdict.reason})
        self._answer(status, f"{said}\n".encode(), _JSON)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's signature
        """Log nothing: requests come every few seconds."""


def _seconds(query: str) -> float | None:
    """Return the parameter `seconds` of a URL's query. Return the default if the parameter is missing, and None if it
    is not a positive number."""
    given = parse_qs(query, keep_blank_values=True).get("seconds", [str(DEFAULT_WITHIN_SECONDS)])[-1]
    try:
        seconds = float(given)
    except ValueError:
        return None
    return seconds if seconds > 0 and math.isfinite(seconds) else None
