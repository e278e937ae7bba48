"""Ends of the jobs' command lines, and their messages."""

import subprocess
import sys

import pyspark
import pytest

from harvest_lib.errors import ConfigError, DatabaseUnavailable
from harvest_lib.spark import outbox_sink
from harvest_lib.spark.audit import __main__ as audit
from harvest_lib.spark.command import Parser, run, tell
from harvest_lib.spark.flights import by_day, by_month
from harvest_lib.spark.session import spark_session

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1)])
def test_a_command_ends_with_what_it_returns(returned, code, capsys):
    def command():
        tell("done")
        return returned

    assert run(command, interrupted="") == code
    assert capsys.readouterr() == ("done\n", "")


@pytest.mark.parametrize("error", [ConfigError("no", next_step="yes"), DatabaseUnavailable("away", next_step="wait")])
def test_an_error_is_told_and_its_code_returned(error, capsys):
    def command():
        raise error

    assert run(command, interrupted="") == error.exit_code != 0
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_a_bug_is_no_error_to_be_told():
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0, interrupted="")


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (by_month, "run it again to load the rest"),
        (by_day, "run it again to load the rest"),
        (outbox_sink, "nothing will be written twice"),
        (audit, "the result tables are as before"),
    ],
)
def test_who_interrupts_a_job_is_told_what_that_leaves(job, says, monkeypatch, capsys):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "_run", interrupt)
    assert job.main([]) == 130
    said = capsys.readouterr().err
    assert said.startswith("interrupted: ")
    assert says in said


def test_help_shows_the_lines_of_the_docstring_and_an_example(capsys):
    parser = Parser(module="a.job", description="What it does.\n\nExit codes: 0", example="--such as")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "What it does.\n\nExit codes: 0\n" in (said := capsys.readouterr().out)
    assert "Example: python -m a.job --such as" in said
    with pytest.raises(ConfigError, match=r"(?s)--unheard-of.*python -m a.job --help"):
        parser.parse_args(["--unheard-of"])


@pytest.mark.parametrize(
    ("job", "arguments", "says"),
    [
        (by_day, [], "--dsn, --first-day"),
        (by_day, ["--dsn", "", "--first-day", "2013-13-01"], "2013-13-01"),
        (by_day, ["--dsn", "", "--first-day", "2013-01-02", "--last-day", "2013-01-01"], "is before the first"),
        (by_month, [], "--dsn"),
        (by_month, ["--dsn", "x=y", "--months", "13"], "months"),
        (by_month, ["--dsn", "", "--topic", "a b"], "cannot name a Kafka topic"),
        (by_month, ["--dsn", "", "--unheard-of"], "--unheard-of"),
        (outbox_sink, [], "input"),
        (outbox_sink, ["x.csv"], "--batch-id"),
        (outbox_sink, ["x.csv", "--dsn", "", "--batch-id", "b", "--topic", "a b", "--key", "k"], "cannot name a Kafka"),
    ],
)
def test_bad_arguments_exit_with_3(job, arguments, says, capsys):
    assert job.main(arguments) == 3
    assert says in (said := capsys.readouterr().err)
    assert "next step" in said


JOBS = ("audit", "flights.by_day", "flights.by_month", "outbox_sink", "replay")
WITH_ANOTHER_SPARK = """
import runpy, sys, pyspark
pyspark.__version__ = sys.argv[1]
runpy.run_module(f"harvest_lib.spark.{sys.argv[2]}", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("job", "version"), [*((job, "3.5.7") for job in JOBS), ("audit", "4.4.0")])
def test_another_version_of_spark_is_refused_in_a_sentence(job, version):
    command = [sys.executable, "-c", WITH_ANOTHER_SPARK, version, job]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (ConfigError.exit_code, "")
    assert done.stderr.startswith(f"error: outbox-harvester is not tested with Spark {version}")
    assert "use Spark 4.0 to 4.3" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_session_of_another_version_is_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "4.4.0")
    refused = pytest.raises(ConfigError, match=r"not tested with Spark 4\.4\.0")
    with refused, spark_session(jars=[], work_folder=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
