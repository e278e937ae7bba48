"""Bringing jars: once, whole or not at all, and with a clear word when it fails. A script stands in for Java."""

import shlex
import subprocess
import sys
import threading
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from harvest_lib.errors import StackError
from harvest_lib.local_stack import jars
from harvest_lib.local_stack.jars import TESTED_SPARK, JarSet, proxy_options, resolve, spark_kafka_jars
from harvest_lib.local_stack.java import find_java
from harvest_lib.local_stack.truststore import write_truststore

pytestmark = pytest.mark.quick

SOME = JarSet(name="some", coordinates=("org.example:some:1.0",), overrides=("org.example:other:2.0",))


@pytest.fixture
def java_home(tmp_path, monkeypatch):
    """Make a Java that runs `answer.sh` with Ivy's arguments, counting its calls in the file `calls`."""
    monkeypatch.setattr(jars.time, "sleep", lambda _: None)
    monkeypatch.setenv("HARVEST_CACHE", str(tmp_path))
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        'for argument; do case "$argument" in */ivy.xml) work=${argument%/ivy.xml};; esac; done\n'
        f". {tmp_path}/answer.sh\n"
    )
    program.chmod(0o755)
    answer(tmp_path, "mkdir $work/jars; touch $work/jars/some-1.0.jar; cp $work/ivy.xml $work/jars")
    return tmp_path / "java"


def answer(tmp_path: Path, script: str) -> None:
    (tmp_path / "answer.sh").write_text(script + "\n")


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_a_set_is_brought_once_even_by_several_at_a_time(tmp_path, java_home):
    answer(tmp_path, (tmp_path / "answer.sh").read_text() + "sleep 0.2")
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(resolve(SOME, tmp_path, java_home))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[tmp_path / "jars" / "some" / "some-1.0.jar"]] * 4
    assert len(calls(tmp_path)) == 1
    assert {entry.name for entry in (tmp_path / "jars").iterdir()} == {"some", ".lock"}
    asked = (tmp_path / "jars" / "some" / "ivy.xml").read_text()
    assert '<dependency org="org.example" name="some" rev="1.0"' in asked
    assert '<override org="org.example" module="other" rev="2.0"/>' in asked


def test_two_clones_share_what_was_brought(tmp_path, java_home):
    (first,) = resolve(SOME, tmp_path / "one", java_home)
    assert resolve(SOME, tmp_path / "other", java_home) == [first]
    assert len(calls(tmp_path)) == 1
    assert not (tmp_path / "one").exists()


def test_two_processes_bring_a_set_once_and_neither_sees_half_of_it(tmp_path, java_home):
    answer(tmp_path, "mkdir $work/jars; touch $work/jars/a.jar; sleep 1\n touch $work/jars/b.jar; cat $work/ivy.xml")
    script = (
        "import sys; from pathlib import Path\n"
        "from harvest_lib.local_stack.jars import JarSet, resolve\n"
        "some = JarSet(name='some', coordinates=('org.example:some:1.0',))\n"
        "print(*(each.name for each in resolve(some, Path(sys.argv[1]), Path(sys.argv[2]))))"
    )
    command = [sys.executable, "-c", script]
    clones = [
        subprocess.Popen([*command, tmp_path / clone, java_home], stdout=subprocess.PIPE, text=True)
        for clone in ("one", "other")
    ]
    assert [clone.communicate(timeout=60)[0].split() for clone in clones] == [["a.jar", "b.jar"]] * 2
    assert len(calls(tmp_path)) == 1


def test_the_remains_of_a_killed_download_go(tmp_path, java_home):
    (tmp_path / "jars" / ".some-killed" / "jars").mkdir(parents=True)
    resolve(SOME, tmp_path, java_home)
    assert {entry.name for entry in (tmp_path / "jars").iterdir()} == {"some", ".lock"}


def test_a_passing_failure_is_tried_again(tmp_path, java_home):
    success = (tmp_path / "answer.sh").read_text()
    answer(tmp_path, f"[ $(wc -l < {tmp_path}/calls) -gt 1 ] || exit 1\n{success}")
    assert len(resolve(SOME, tmp_path, java_home)) == 1
    assert len(calls(tmp_path)) == 2


def test_a_lasting_failure_names_coordinate_cause_and_remedy_and_leaves_nothing(tmp_path, java_home):
    answer(tmp_path, "mkdir -p $work/jars; touch $work/jars/half.jar; echo '  Server access error: timed out'; exit 1")
    with pytest.raises(StackError) as raised:
        resolve(SOME, tmp_path, java_home)
    assert "org.example:some:1.0" in raised.value.cause
    assert "timed out" in raised.value.evidence
    assert "HTTPS_PROXY" in raised.value.next_step
    assert len(calls(tmp_path)) == 3
    assert [entry.name for entry in (tmp_path / "jars").iterdir()] == [".lock"]


def test_an_untrusted_certificate_brings_what_the_machine_trusts(tmp_path, java_home):
    success = (tmp_path / "answer.sh").read_text()
    answer(tmp_path, f"case \"$*\" in *trustStore=*) ;; *) echo 'PKIX path building failed'; exit 1;; esac\n{success}")
    assert len(resolve(SOME, tmp_path, java_home)) == 1


def test_java_reads_what_the_machine_trusts(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    count = write_truststore(tmp_path / "trusted.jks")
    script = (find_java(tmp_path) / "bin" / "java").read_text()
    keytool = Path(shlex.split(script.split("exec ")[1])[0]).with_name("keytool")
    listing = subprocess.run(
        [keytool, "-list", "-keystore", tmp_path / "trusted.jks", "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listing.stdout.count("trustedCertEntry") == count
    assert count > 0


def test_proxies_are_passed_on_without_credentials(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    assert proxy_options() == []
    monkeypatch.setenv("HTTPS_PROXY", "http://user:canary@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "localhost, .example")
    assert proxy_options() == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.example",
    ]


def test_without_pyspark_the_error_says_so(tmp_path, java_home, monkeypatch):
    monkeypatch.setattr(jars, "find_spec", lambda _: None)
    with pytest.raises(StackError, match=r"make setup|pip install"):
        resolve(SOME, tmp_path, java_home)


POM = """<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>some</artifactId>
<version>1.0</version></project>"""
SETTINGS = """<ivysettings><settings defaultResolver="here"/><resolvers>
<ibiblio name="here" m2compatible="true" root="http://127.0.0.1:{port}/"/></resolvers></ivysettings>"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A real Ivy, and a server over HTTP that has version 1.0 of a jar. Return the server; Ivy's calls are counted."""
    monkeypatch.setattr(jars.time, "sleep", lambda _: None)
    monkeypatch.setenv("HARVEST_CACHE", str(tmp_path))
    place = tmp_path / "maven" / "org" / "example" / "some" / "1.0"
    place.mkdir(parents=True)
    (place / "some-1.0.pom").write_text(POM)
    (place / "some-1.0.jar").write_bytes(b"a jar")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "maven"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    (tmp_path / "settings.xml").write_text(SETTINGS.format(port=server.server_port))
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    real = find_java(tmp_path) / "bin" / "java"
    program.write_text(
        f'#!/bin/sh\necho call >> {tmp_path}/calls\nexec {real} "$@" -settings {tmp_path}/settings.xml\n'
    )
    program.chmod(0o755)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.full
def test_a_repository_that_lacks_a_version_is_told_from_a_network_that_is_down(tmp_path, repository):
    (found,) = resolve(SOME, tmp_path, tmp_path / "java")
    assert found.read_bytes() == b"a jar"
    newer = JarSet(name="newer", coordinates=("org.example:some:1.1",), other="use 1.0")
    with pytest.raises(StackError) as lacking:
        resolve(newer, tmp_path, tmp_path / "java")
    assert lacking.value.cause == "the repository has no jars of org.example:some:1.1"
    assert "not found" in lacking.value.evidence
    assert lacking.value.next_step.startswith("use 1.0, or put the jars into ")
    assert len(calls(tmp_path)) == 2, "asked once"
    repository.shutdown()
    repository.server_close()
    with pytest.raises(StackError) as down:
        resolve(newer, tmp_path, tmp_path / "java")
    assert "could not be brought" in down.value.cause
    assert "check the network" in down.value.next_step
    assert len(calls(tmp_path)) == 5


def test_another_version_of_the_same_line_is_the_next_step():
    lock = tomllib.loads((Path(__file__).parents[3] / "uv.lock").read_text(encoding="utf-8"))
    locked = {each["version"] for each in lock["package"] if each["name"] == "pyspark"}
    assert locked == {TESTED_SPARK["4.1"]}
    assert "`python -m harvest_lib.spark.jars --spark-version 4.1.3`" in spark_kafka_jars("4.1.9").other
    assert spark_kafka_jars("4.1.3").other == ""
    assert spark_kafka_jars("4.1.3").coordinates == ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",)


@pytest.mark.parametrize(("installed", "kafka"), [("4.0.5", "4.0.2"), ("4.3.0", "4.2.0"), ("4.4.0", "4.4.0")])
def test_by_default_the_version_is_the_one_that_is_tested_with_the_installed_spark(installed, kafka, monkeypatch):
    monkeypatch.setattr(jars, "version", lambda _: installed)
    assert spark_kafka_jars().coordinates == (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{kafka}",)
    assert spark_kafka_jars().other == ""


def test_a_spark_of_no_package_has_to_be_named(monkeypatch):
    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr(jars, "version", missing)
    with pytest.raises(StackError, match="the version of Spark is not known") as raised:
        spark_kafka_jars()
    assert "--spark-version" in raised.value.next_step
    assert spark_kafka_jars("4.1.3").name == "spark-kafka-4.1.3"
