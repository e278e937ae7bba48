"""Expiry of the configured certificates of a process. The package cryptography reads them from their files.

For the certificates that a client presents (its own and the chain) the earliest expiry counts. For trusted authorities
the latest expiry counts, because a file contains several authorities while an authority is being replaced, and a
system's file contains old, unused authorities.

A client reads a file only when the client is created, so the file may be newer than the certificate that is in use.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from harvest_lib.errors import install_hint
from harvest_lib.process import threads

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_log = logging.getLogger(__name__)

WARN_SECONDS = 14 * 86_400.0
"""Time before the expiry of a certificate from which a warning is logged."""
_EVERY_SECONDS = 86_400.0
_NO_FILES = {"system", "probe"}
"""Values of `sslrootcert` and `ssl.ca.location` that are not a path: the client finds the file itself."""


class UnreadableCertificate(Exception):
    """A file is missing, or contains no certificate that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Source of a certificate: a file, or the text itself. Only the name `setting` is logged or reported."""

    setting: str
    shown: bool
    """True for a certificate that the client presents, False for trusted authorities."""
    path: Path | None = field(default=None, repr=False)
    text: str = field(default="", repr=False)
    password: str | None = field(default=None, repr=False)
    """Password of a key store; None if the source is not a key store."""


def _of_kafka(settings: Mapping[str, object]) -> Iterator[_Place]:
    given = {name: str(value) for name, value in settings.items() if name.startswith("ssl.") and value}
    for setting, shown in (("ssl.certificate", True), ("ssl.ca", False)):
        path = given.get(f"{setting}.location", "probe")
        if path not in _NO_FILES:
            yield _Place(setting=f"{setting}.location", shown=shown, path=Path(path))
        if f"{setting}.pem" in given:
            yield _Place(setting=f"{setting}.pem", shown=shown, text=given[f"{setting}.pem"])
    if (store := given.get("ssl.keystore.location")) is not None:
        password = given.get("ssl.keystore.password", "")
        yield _Place(setting="ssl.keystore.location", shown=True, path=Path(store), password=password)


def _of_postgres(parameters: Mapping[str, object]) -> Iterator[_Place]:
    for setting, shown in (("sslcert", True), ("sslrootcert", False)):
        path = str(parameters.get(setting) or os.environ.get(f"PG{setting.upper()}") or "")
        if path and path not in _NO_FILES:
            yield _Place(setting=setting, shown=shown, path=Path(path))


class Certificates:
    """The certificates of a process, by the settings that name them. Any thread may use it."""

    def __init__(self, *kafka: Mapping[str, object], postgres: Mapping[str, object] | None = None) -> None:
        """`kafka` are the librdkafka settings of the process's Kafka clients. `postgres` are the connection parameters
        of its Postgres connections."""
        found = [place for settings in kafka for place in _of_kafka(settings)]
        self._places = dict.fromkeys([*found, *_of_postgres(postgres or {})])
        self._read: dict[_Place, tuple[object, float | None]] = {}  # `_mark` of the file as it was read, and the expiry
        self._has_logged_unknown = False
        self._lock = threading.Lock()

    def expiries(self) -> Mapping[str, float]:
        """Return the expiry of each certificate, in Unix seconds, by the setting that names the certificate. A file
        that has changed is read again. An unreadable file is left out, and logged once."""
        found: dict[str, float] = {}
        with self._lock:
            for place in self._places if self._places and self._can_read() else ():
                expires = self._expiry(place)
                if expires is not None:
                    found[place.setting] = min(expires, found.get(place.setting, expires))
        return found

    def expiring(self, now: float) -> Mapping[str, float]:
        """Return the `expiries` of certificates that have expired or expire within WARN_SECONDS. `now` is in Unix
        seconds."""
        return {setting: at for setting, at in self.expiries().items() if at - now < WARN_SECONDS}

    def begin(self, stopping: threading.Event, clock: Callable[[], float]) -> None:
        """Start a thread that logs the `expiring` certificates, at once and then every day until `stopping` is set.
        `clock` returns Unix seconds."""
        if self._places:
            threads.repeat(
                "harvest-certificates",
                lambda: self._log_expiring(clock()),
                stopping=stopping,
                pause_seconds=lambda: _EVERY_SECONDS,
            )

    def _log_expiring(self, now: float) -> None:
        for setting, at in self.expiring(now).items():
            expires_at = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
            _log.warning("certificate_expires", extra={"setting": setting, "expires_at": expires_at})

    def _expiry(self, place: _Place) -> float | None:
        mark = _mark(place)
        if place not in self._read or self._read[place][0] != mark:
            expires = None
            try:
                expires = _expiry_of(place)
            except UnreadableCertificate as error:
                _log.warning("certificate_unreadable", extra={"setting": place.setting, "reason": str(error)})
            self._read[place] = mark, expires
        return self._read[place][1]

    def _can_read(self) -> bool:
        if find_spec("cryptography") is not None:
            return True
        if not self._has_logged_unknown:
            self._has_logged_unknown = True
            _log.warning("certificates_unknown", extra={"next_step": install_hint("certificates")})
        return False


def _mark(place: _Place) -> object:
    """Return a value that changes if the certificate's file changes. None for a text, or a file that is missing."""
    with suppress(OSError, ValueError):
        if place.path is not None:
            stat = place.path.stat()
            return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino  # permissions change only ctime
    return None


def _expiry_of(place: _Place) -> float | None:
    """Return the expiry of a certificate in Unix seconds; None for a folder of authorities. Raises
    UnreadableCertificate."""
    try:
        if place.path is not None and place.path.is_dir():
            return None
        content = place.path.read_bytes() if place.path is not None else place.text.encode()
    except (OSError, ValueError) as error:
        raise UnreadableCertificate(getattr(error, "strerror", None) or "it is no path") from None
    try:
        expiries = [each.not_valid_after_utc.timestamp() for each in _certificates_in(content, place.password)]
    except Exception:  # noqa: BLE001 - the package raises many types, and their texts may quote the content
        raise UnreadableCertificate("no certificate can be read from it") from None
    if not expiries:
        raise UnreadableCertificate("the key store holds no certificate")
    return min(expiries) if place.shown else max(expiries)


def _certificates_in(content: bytes, password: str | None) -> "list[Certificate]":
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12  # noqa: PLC0415 - an optional package
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 - an optional package

    if password is None:
        return load_pem_x509_certificates(content)
    store = load_pkcs12(content, password.encode() or None)
    return [each.certificate for each in (store.cert, *store.additional_certs) if each is not None]
