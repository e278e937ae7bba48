"""Downloads Java libraries by their Maven coordinates, once, into a cache that all clones of a user share.

The Ivy inside pyspark resolves and downloads the jars; Ivy's own cache is in the same folder. A set of jars appears
atomically: the jars are downloaded to a temporary folder next to the final folder, then the folder is renamed. A lock
excludes other processes. A set that exists is never resolved again.
"""

import shutil
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from harvest_lib.errors import StackError, install_hint
from harvest_lib.local_stack.process import through_child
from harvest_lib.local_stack.state import download_cache, locked, make_folder
from harvest_lib.local_stack.truststore import write_truststore

_ATTEMPTS = 3
_ATTEMPT_SECONDS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """A set of jars in a folder: the jars of the coordinates `organisation:name:revision` and all dependencies."""

    name: str
    coordinates: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    """Coordinates whose revision replaces every other revision of the same module."""
    other: str = ""
    """The command that brings another revision that works too, for a repository that lacks these jars."""


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
        coordinates=(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",),
        # Some repositories lack this module in Spark's own revision. Its contents, delegation tokens, have not changed.
        overrides=("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",),
        other=f"`python -m harvest_lib.spark.jars --spark-version {tested}`" if tested != spark else "",
    )


def resolve(jars: JarSet, state: Path, java_home: Path) -> list[Path]:
    """Return the sorted paths of a set's jars. Download the jars first if they are missing.

    The jars are in `download_cache(state)`. Several processes, also of several clones, may call this at the same time.
    Raises StackError if the jars cannot be downloaded.
    """
    cache = download_cache(state)
    folder = cache / "jars" / jars.name
    if not folder.is_dir():
        make_folder(folder.parent)
        with locked(folder.parent / ".lock"):
            if not folder.is_dir():
                _bring(jars, cache, java_home, folder)
    return sorted(folder.glob("*.jar"))


def _bring(jars: JarSet, cache: Path, java_home: Path, folder: Path) -> None:
    for left in folder.parent.glob(f".{jars.name}-*"):  # left by a killed process: this process holds the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{jars.name}-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_file(jars))
        options = proxy_options()
        answer = ""
        for attempt in range(_ATTEMPTS):
            code, answer = _ivy(work, cache / "ivy", java_home, options)
            if code == 0 and any((work / "jars").glob("*.jar")):
                (work / "jars").chmod(0o755)
                (work / "jars").rename(folder)
                return
            if _lacks(answer):
                raise StackError(
                    f"the repository has no jars of {' and '.join(jars.coordinates)}",
                    evidence=_complaint(answer),
                    next_step=f"{jars.other or 'use a repository that has them'}, or put the jars into {folder}",
                )
            if "PKIX path" in answer and not any("trustStore" in option for option in options):
                write_truststore(work / "trusted.jks")
                options += [f"-Djavax.net.ssl.trustStore={work / 'trusted.jks'}", "-Djavax.net.ssl.trustStoreType=JKS"]
            else:
                time.sleep(2**attempt)
        raise StackError(
            f"the jars of {' and '.join(jars.coordinates)} could not be brought",
            evidence=_complaint(answer),
            next_step=f"check the network (HTTPS_PROXY is honoured) and run it again, or put the jars into {folder}",
        )


def _lacks(answer: str) -> bool:
    """Return True if the repository answered that it has no such jars. Ivy reports a module as not found after an error
    of the network too."""
    return ": not found" in answer and not any(mark in answer for mark in ("Server access error", "Exception"))


def _ivy(work: Path, cache: Path, java_home: Path, options: list[str]) -> tuple[int, str]:
    command: list[str | Path] = [
        java_home / "bin" / "java",
        *options,
        f"-Divy.default.ivy.user.dir={make_folder(cache)}",
        f"-Duser.home={cache}",  # so that Ivy neither reads nor writes the user's own folders
        *("-jar", _ivy_jar(), "-ivy", work / "ivy.xml", "-cache", cache / "cache", "-confs", "default"),
        *("-retrieve", f"{work / 'jars'}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        done = subprocess.run(
            through_child(command), capture_output=True, text=True, timeout=_ATTEMPT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"ERROR no end after {_ATTEMPT_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def _ivy_jar() -> Path:
    found = find_spec("pyspark")
    folder = Path(found.origin).parent / "jars" if found and found.origin else Path()
    jar = next(iter(sorted(folder.glob("ivy-*.jar"))), None) if found else None
    if jar is None:
        raise StackError(
            "the jars cannot be brought: they are resolved by a part of pyspark, which is not installed",
            next_step=install_hint("local"),
        )
    return jar


def _ivy_file(jars: JarSet) -> str:
    dependencies = "".join(
        "<dependency org={} name={} rev={} conf='default->default'/>".format(*map(quoteattr, coordinate.split(":")))
        for coordinate in jars.coordinates
    )
    overrides = "".join(
        "<override org={} module={} rev={}/>".format(*map(quoteattr, coordinate.split(":")))
        for coordinate in jars.overrides
    )
    return (
        "<ivy-module version='2.0'><info organisation='outbox-harvester' module='jars' revision='1'/>"
        f"<configurations><conf name='default'/></configurations>"
        f"<dependencies>{dependencies}{overrides}</dependencies></ivy-module>"
    )


def proxy_options() -> list[str]:
    """Return Java options for HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Credentials in the variables are left out."""
    options = []
    proxies = urllib.request.getproxies_environment()
    for scheme in ("http", "https"):
        proxy = urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    if options and (direct := proxies.get("no")):
        hosts = "|".join(f"*{host}" if host.startswith(".") else host for host in direct.replace(" ", "").split(","))
        options.append(f"-Dhttp.nonProxyHosts={hosts}")
    return options


def _complaint(answer: str) -> str:
    marks = ("ERROR", "not found", "Server access error", "Exception", "FAILED", "cannot start")
    lines = [line.strip() for line in answer.splitlines() if any(mark in line for mark in marks)]
    return "; ".join(dict.fromkeys(line.strip(":; ")[:300] for line in lines[:3])) or answer[-300:]
