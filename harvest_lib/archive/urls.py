"""Hides the secrets in URLs of archives, for output, logs and the table of archived segments.

A URL may contain credentials (`s3://key:secret@bucket/orders`), a signature or a token (`?sig=…`), and fsspec allows
chains of URLs (`simplecache::s3://…`). Libraries quote the URL in their errors.
"""

import re
from collections.abc import Iterator
from urllib.parse import unquote

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

# With these schemes, a name without a password before the host is a user's or a container's. With other schemes it may
# be a token.
_NAMES_ONLY = frozenset({"az", "abfs", "abfss", "wasb", "wasbs", "adl", "hdfs", "webhdfs", "sftp", "ssh", "ftp", "smb"})

_PORT = re.compile(r"[^/@:]*:\d*(/|$)")

_HIDDEN = "***"

_PIECE = 4
"""Minimum length of a part of a password that is hidden without the rest of the password. Shorter parts occur by chance
in any text."""


def shown(url: str) -> str:
    """Return a URL with user, password and the values of its query hidden. A path is returned unchanged."""
    return "::".join(shown for shown, _ in map(_parted, url.split("::")))


def without_secrets(text: str, url: str) -> str:
    """Return a text, such as a library's error, with all secrets of a URL hidden."""
    found = {form for each in secrets(url) for form in (each, unquote(each)) if form}
    for each in sorted(found, key=len, reverse=True):
        text = text.replace(each, _HIDDEN)
    return text


def secrets(url: str) -> list[str]:
    """Return the secret parts of a URL, which `shown` hides."""
    return [secret for each in url.split("::") for secret in _parted(each)[1]]


def _parted(url: str) -> tuple[str, list[str]]:
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url, []
    rest, mark, query = url[scheme.end() :].partition("?")
    user, rest = _user(scheme[0].removesuffix("://").lower(), rest)
    pairs = [each.partition("=") for each in query.split("&")]
    kept = "&".join(f"{name}={_HIDDEN}" if equals else _HIDDEN for name, equals, _ in pairs) if query else ""
    hidden = [*_pieces(user), *(value if equals else name for name, equals, value in pairs)]
    return f"{scheme[0]}{rest}{mark}{kept}", [each for each in hidden if each]


def _user(scheme: str, rest: str) -> tuple[str, str]:
    """Split a URL without its scheme. Return two values: the credentials before the host or bucket ("" without
    credentials), and the rest of the URL. If a password contains an unencoded `/` or `@`, the credentials end at the
    last `@`."""
    first = rest.partition("/")[0]
    if ":" in first.partition("@")[0] and not _PORT.match(rest) and "@" in rest:
        user, _, rest = rest.rpartition("@")
        return user, rest
    if "@" in first and scheme not in _NAMES_ONLY:
        user, _, rest = rest.partition("@")
        return user, rest
    return "", rest


def _pieces(user: str) -> Iterator[str]:
    name, colon, password = user.partition(":")
    if colon:
        yield user
        yield password
        yield from (piece for piece in re.split("[/@]", password) if len(piece) >= _PIECE)  # a library may split there
    yield name
