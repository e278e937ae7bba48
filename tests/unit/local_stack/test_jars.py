"""Bringing jars from a repository, over HTTP: once, whole or not at all, and with a clear word when it fails."""

import hashlib
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
from harvest_lib.local_stack.jars import TESTED_SPARK, JarSet, resolve, spark_kafka_jars

pytestmark = pytest.mark.quick

SOME = JarSet(name="some", coordinates=("org.example:some:1.0", "org.example:other:2.0"))
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>{name}</artifactId>
<version>{version}</version><dependencies>{needs}</dependencies></project>"""
NEEDED = """<dependency><groupId>org.example</groupId><artifactId>{}</artifactId><version>{}</version>
<scope>{}</scope></dependency>"""


class Repository:
    """A Maven repository. `fails` are the answers, instead of files, to the requests after the first `answers`."""

    def __init__(self, folder):
        self.folder = folder
        self.fails, self.answers = [], 0
        self.asked = []
        repository = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self):
                repository.asked.append(self.path.rpartition("/")[2])
                repository.answers -= 1
                if repository.fails and repository.answers < 0:
                    self.send_error(repository.fails.pop())
                else:
                    super().do_GET()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def add(self, name, version, *needs):
        place = self.folder / "org" / "example" / name / version
        place.mkdir(parents=True)
        text = POM.format(name=name, version=version, needs="".join(NEEDED.format(*each) for each in needs))
        (place / f"{name}-{version}.pom").write_text(text)
        content = f"the jar of {name} {version}".encode()
        (place / f"{name}-{version}.jar").write_bytes(content)
        (place / f"{name}-{version}.jar.sha1").write_text(hashlib.sha1(content).hexdigest())  # noqa: S324 - Maven's
        return place / f"{name}-{version}.jar"

    def count(self, name):
        return self.asked.count(name)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of `some`, which needs `other` 1.0, which needs `third`; `other` is there in 2.0 too."""
    monkeypatch.setattr(jars.time, "sleep", lambda _: None)
    monkeypatch.setenv("HARVEST_CACHE", str(tmp_path))
    made = Repository(tmp_path / "maven")
    monkeypatch.setenv("HARVEST_MAVEN_URL", f"http://127.0.0.1:{made.server.server_port}/")
    made.add("some", "1.0", ("other", "1.0", "compile"), ("tests", "1.0", "test"), ("given", "1.0", "provided"))
    made.add("other", "1.0", ("third", "1.0", "runtime"))
    made.add("other", "2.0", ("third", "1.0", "runtime"))
    made.add("third", "1.0")
    yield made
    made.close()


def names(found):
    return [each.name for each in found]


def test_a_set_has_all_that_is_needed_to_run_in_the_revisions_that_are_named(tmp_path, repository):
    assert names(resolve(SOME, tmp_path)) == ["other-2.0.jar", "some-1.0.jar", "third-1.0.jar"]
    assert (tmp_path / "jars" / "some" / "some-1.0.jar").read_bytes() == b"the jar of some 1.0"


def test_a_set_is_brought_once_even_by_several_at_a_time(tmp_path, repository):
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(resolve(SOME, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [names(each) for each in found] == [["other-2.0.jar", "some-1.0.jar", "third-1.0.jar"]] * 4
    assert repository.count("some-1.0.jar") == 1
    assert {entry.name for entry in (tmp_path / "jars").iterdir()} == {"some", ".lock"}


def test_two_clones_share_what_was_brought(tmp_path, repository):
    first = resolve(SOME, tmp_path / "one")
    assert resolve(SOME, tmp_path / "other") == first
    assert repository.count("some-1.0.jar") == 1
    assert not (tmp_path / "one").exists()


def test_two_processes_bring_a_set_once_and_neither_sees_half_of_it(tmp_path, repository):
    script = (
        "import sys; from pathlib import Path\n"
        "from harvest_lib.local_stack.jars import JarSet, resolve\n"
        f"print(*(each.name for each in resolve({SOME!r}, Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", script]
    clones = [
        subprocess.Popen([*command, tmp_path / clone], stdout=subprocess.PIPE, text=True) for clone in ("one", "other")
    ]
    found = [clone.communicate(timeout=60)[0].split() for clone in clones]
    assert found == [["other-2.0.jar", "some-1.0.jar", "third-1.0.jar"]] * 2
    assert repository.count("some-1.0.jar") == 1


def test_the_remains_of_a_killed_download_go(tmp_path, repository):
    (tmp_path / "jars" / ".some-killed" / "jars").mkdir(parents=True)
    resolve(SOME, tmp_path)
    assert {entry.name for entry in (tmp_path / "jars").iterdir()} == {"some", ".lock"}


def test_the_progress_is_told(tmp_path, repository):
    told = []
    resolve(SOME, tmp_path, lambda *each: told.append(each))
    assert told[0] == (0, 3, 0)
    size = sum(each.stat().st_size for each in (tmp_path / "jars" / "some").iterdir())
    assert told[-1] == (3, 3, size)


@pytest.mark.parametrize("before", [0, 1, 4, 6])
def test_a_passing_failure_of_any_request_is_tried_again(tmp_path, repository, before):
    repository.fails = [503]
    repository.answers = before
    assert len(resolve(SOME, tmp_path)) == 3
    assert repository.fails == []


def test_a_file_with_another_checksum_is_not_taken(tmp_path, repository):
    jar = tmp_path / "maven" / "org" / "example" / "third" / "1.0" / "third-1.0.jar"
    jar.write_bytes(b"something else")
    with pytest.raises(StackError, match="could not be downloaded") as raised:
        resolve(SOME, tmp_path)
    assert "third-1.0.jar has another checksum" in raised.value.evidence
    assert repository.count("third-1.0.jar") == 3
    assert names((tmp_path / "jars").iterdir()) == [".lock"]


def test_a_repository_that_lacks_a_version_is_told_from_a_network_that_is_down(tmp_path, repository):
    newer = JarSet(name="newer", coordinates=("org.example:some:1.1",), other="use 1.0")
    with pytest.raises(StackError) as lacking:
        resolve(newer, tmp_path)
    assert lacking.value.cause == "the repository has no jars of org.example:some:1.1"
    assert "not found" in lacking.value.evidence
    assert lacking.value.next_step.startswith("use 1.0, or put the jars into ")
    repository.fails = [500] * 100
    for end in ("500", "Connection refused"):
        with pytest.raises(StackError) as down:
            resolve(newer, tmp_path)
        assert "could not be downloaded" in down.value.cause
        assert end in down.value.evidence
        assert "HTTPS_PROXY is honoured" in down.value.next_step
        repository.close()


def test_a_dependency_that_is_missing_is_told(tmp_path, repository):
    repository.add("broken", "1.0", ("nowhere", "1.0", "compile"))
    with pytest.raises(StackError, match="the repository has no jars of") as raised:
        resolve(JarSet(name="broken", coordinates=("org.example:broken:1.0",)), tmp_path)
    assert "nowhere" in raised.value.evidence


def test_without_the_extra_the_error_says_so(tmp_path, repository, monkeypatch):
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(StackError, match=r"make setup|pip install"):
        resolve(SOME, tmp_path)


def test_another_version_of_the_same_line_is_the_next_step():
    lock = tomllib.loads((Path(__file__).parents[3] / "uv.lock").read_text(encoding="utf-8"))
    locked = {each["version"] for each in lock["package"] if each["name"] == "pyspark"}
    assert locked == {TESTED_SPARK["4.1"]}
    assert "`python -m harvest_lib.spark.jars --spark-version 4.1.3`" in spark_kafka_jars("4.1.9").other
    assert spark_kafka_jars("4.1.3").other == ""
    assert spark_kafka_jars("4.1.3").coordinates[0] == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3"


@pytest.mark.parametrize(("installed", "kafka"), [("4.0.5", "4.0.2"), ("4.3.0", "4.2.0"), ("4.4.0", "4.4.0")])
def test_by_default_the_version_is_the_one_that_is_tested_with_the_installed_spark(installed, kafka, monkeypatch):
    monkeypatch.setattr(jars, "version", lambda _: installed)
    assert spark_kafka_jars().coordinates[0] == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{kafka}"
    assert spark_kafka_jars().other == ""


def test_a_spark_of_no_package_has_to_be_named(monkeypatch):
    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr(jars, "version", missing)
    with pytest.raises(StackError, match="the version of Spark is not known") as raised:
        spark_kafka_jars()
    assert "--spark-version" in raised.value.next_step
    assert spark_kafka_jars("4.1.3").name == "spark-kafka-4.1.3"
