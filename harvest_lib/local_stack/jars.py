"""Downloads Java libraries by their Maven coordinates, once, into a cache that all clones of a user share.

`jgo` finds the jars that a library needs, without Java. They come from Maven Central, or from the repository that
HARVEST_MAVEN_URL names. A set of jars appears atomically: the jars are downloaded to a temporary folder next to the
final folder, their checksums are compared, then the folder is renamed. A lock excludes other processes. A set that
exists is never resolved again.
"""

import hashlib
import logging
import os
import re
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock

from harvest_lib.errors import StackError, install_hint
from harvest_lib.local_stack.state import download_cache, locked, make_folder

_ATTEMPTS = 3
_SECONDS = 60
_CHUNK = 1 << 16
_AT_ONCE = 6
_USED = ("compile", "runtime", None)
_URL = "HARVEST_MAVEN_URL"
_ABSENT = re.compile(r"Artifact (\S+?):(\S+?):pom:(\S+) not found")

Progress = Callable[[int, int, int], None]
"""Called with the number of jars that are there, the number of all, and the bytes so far. Several threads call it, one
at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """A set of jars in a folder: the jars of the coordinates `organisation:name:revision` and all dependencies. The
    revision of a coordinate replaces every other revision of the same module."""

    name: str
    coordinates: tuple[str, ...]
    other: str = ""
    """The command that brings another revision that works too, for a repository that lacks these jars."""

    def folder(self, state: Path) -> Path:
        """Return the folder that has the jars, if they were downloaded."""
        return download_cache(state) / "jars" / self.name


def kafka_jars(release: str) -> JarSet:
    """Return the set of jars of a Kafka broker. The second coordinate is a logger: without it a broker logs nothing."""
    return JarSet(
        name=f"kafka-{release}",
        coordinates=(f"org.apache.kafka:kafka_2.13:{release}", "org.slf4j:slf4j-simple:1.7.36"),
    )


POSTGRES_JDBC = JarSet(name="postgres-jdbc", coordinates=("org.postgresql:postgresql:42.7.11",))


TESTED_SPARK = {"4.0": "4.0.2", "4.1": "4.1.3", "4.2": "4.2.0", "4.3": "4.2.0"}
"""The version of the Kafka source that is tested with each line of Spark, and works with every version of that line.

Some repositories lack the Kafka source of the newest version of Spark.
"""


def spark_kafka_jars(spark: str | None = None) -> JarSet:
    """Return the set of jars of Spark's Kafka source in a version, by default in the version that is tested with the
    installed Spark. Raises StackError if that is not known."""
    try:
        installed = spark or version("pyspark")
    except PackageNotFoundError as error:  # not installed, or in a folder of the cluster's Spark
        raise StackError(
            "the version of Spark is not known, because no pyspark is installed in this Python",
            next_step=f"name it by --spark-version, or {install_hint('spark')}",
        ) from error
    tested = TESTED_SPARK.get(".".join(installed.split(".")[:2]), installed)
    spark = spark or tested
    return JarSet(
        name=f"spark-kafka-{spark}",
        coordinates=(
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
            # Some repositories lack this module in Spark's own revision. Its contents, delegation tokens, have not
            # changed.
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        ),
        other=f"`python -m harvest_lib.spark.jars --spark-version {tested}`" if tested != spark else "",
    )


def resolve(jars: JarSet, state: Path, progress: Progress = lambda *_: None) -> list[Path]:
    """Return the sorted paths of a set's jars. Download the jars first if they are missing.

    The jars are in `download_cache(state)`. Several processes, also of several clones, may call this at the same time.
    Raises StackError if the jars cannot be downloaded.
    """
    folder = jars.folder(state)
    if not folder.is_dir():
        make_folder(folder.parent)
        with locked(folder.parent / ".lock"):
            if not folder.is_dir():
                _bring(jars, folder, progress)
    return sorted(folder.glob("*.jar"))


class _MissingError(Exception):
    """The repository has no such file."""


class _TransferError(Exception):
    """The repository did not answer, or answered with another file."""


def _bring(jars: JarSet, folder: Path, progress: Progress) -> None:
    for left in folder.parent.glob(f".{jars.name}-*"):  # left by a killed process: this process holds the lock
        shutil.rmtree(left, ignore_errors=True)
    failure: Exception | None = None
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(2**attempt)
        prefix = f".{jars.name}-"
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix, ignore_cleanup_errors=True) as name:
            work = Path(name)
            try:
                with _trusted_certificates():
                    places = _places(jars, work)
                _download(places, make_folder(work / "jars"), progress)
            except _TransferError as error:
                failure = error
            except _MissingError as error:
                raise StackError(
                    f"the repository has no jars of {' and '.join(jars.coordinates)}",
                    evidence=str(error),
                    next_step=f"{jars.other or 'use a repository that has them'}, or put the jars into {folder}",
                ) from error
            else:
                (work / "jars").chmod(0o755)
                (work / "jars").rename(folder)
                return
    raise StackError(
        f"the jars of {' and '.join(jars.coordinates)} could not be downloaded",
        evidence=str(failure),
        next_step=f"check the network (HTTPS_PROXY is honoured; {_URL} names another Maven repository) and run it "
        f"again, or put the jars into {folder}",
    ) from failure


def _places(jars: JarSet, work: Path) -> list[str]:
    """Return the URLs of the jars of a set and of all that they need."""
    try:
        from jgo.maven import MavenContext  # noqa: PLC0415 - an extra
        from requests import RequestException  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise StackError(
            "the jars cannot be downloaded",
            evidence=f"there is no module {error.name}",
            next_step=install_hint("local"),
        ) from error
    logging.getLogger("jgo").setLevel(logging.ERROR)
    url = os.environ.get(_URL, "").rstrip("/")
    context = MavenContext(
        repo_cache=work / "poms",
        local_repos=[],
        remote_repos={"maven": url} if url else None,
        timeout=_SECONDS,
    )
    (repository,) = context.remote_repos.values()
    try:
        asked, needed = context.resolver.resolve([context.create_dependency(each) for each in jars.coordinates])
    except RequestException as error:
        raise _TransferError(str(error)) from error
    except RuntimeError as error:  # jgo does not tell an error of the repository from a file that is missing
        found = _ABSENT.search(str(error))
        coordinates = [":".join(found.groups())] if found else jars.coordinates
        for organisation, name, revision in (each.split(":") for each in coordinates):
            path = f"{organisation.replace('.', '/')}/{name}/{revision}/{name}-{revision}.pom"
            with _opened(f"{repository}/{path}"):
                pass
        raise _TransferError(str(error)) from error
    artifacts = [each.artifact for each in [*asked, *needed] if each.scope in _USED and not each.optional]
    return [f"{repository}/{each.component.path_prefix.as_posix()}/{each.filename}" for each in artifacts]


def _download(urls: list[str], folder: Path, progress: Progress) -> None:
    lock, done, received = Lock(), 0, 0

    def count(size: int, jars: int = 0) -> None:
        nonlocal done, received
        with lock:
            done, received = done + jars, received + size
            progress(done, len(urls), received)

    def fetch(url: str) -> None:
        found = hashlib.sha1(usedforsecurity=False)
        try:
            with _opened(url) as answer, (folder / url.rpartition("/")[2]).open("wb") as file:
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    found.update(chunk)
                    count(len(chunk))
            with _opened(f"{url}.sha1") as answer:
                wanted = answer.read(_CHUNK).decode().split()
        except (OSError, HTTPException) as error:
            raise _TransferError(f"{url}: {error}") from error
        if wanted[:1] != [found.hexdigest()]:
            raise _TransferError(f"{url} has another checksum than {url}.sha1 says")
        count(0, jars=1)

    count(0)
    with ThreadPoolExecutor(_AT_ONCE, "harvest-jars") as pool:
        for each in [pool.submit(fetch, url) for url in urls]:
            each.result()


@contextmanager
def _opened(url: str) -> Iterator[HTTPResponse]:
    """Open a URL over HTTP, through a proxy that the environment names."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - of a Maven repository
            yield answer
    except urllib.error.HTTPError as error:
        if error.code == 404:  # noqa: PLR2004 - HTTP's own number
            raise _MissingError(f"{url} is not found") from error
        raise _TransferError(f"{url}: {error}") from error
    except urllib.error.URLError as error:
        raise _TransferError(f"{url}: {error.reason}") from error


@contextmanager
def _trusted_certificates() -> Iterator[None]:
    """Let `requests`, by which jgo reads, trust the certificates that this machine trusts."""
    known = ssl.get_default_verify_paths().cafile
    if known is None or {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"} & os.environ.keys():
        yield
        return
    os.environ["REQUESTS_CA_BUNDLE"] = known
    try:
        yield
    finally:
        del os.environ["REQUESTS_CA_BUNDLE"]
