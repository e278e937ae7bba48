"""The command that downloads the jars: the jobs take its output."""

import pytest

from harvest_lib.errors import ConfigError
from harvest_lib.spark.jars import main
from harvest_lib.spark.session import JARS_VARIABLE, jdbc_jars

pytestmark = pytest.mark.quick


def test_what_is_printed_is_what_the_jobs_take(parts, capsys, monkeypatch):
    monkeypatch.setenv("HARVEST_HOME", str(parts))
    assert main([]) == 0
    monkeypatch.setenv(JARS_VARIABLE, capsys.readouterr().out.strip())
    names = [jar.name for jar in jdbc_jars(None)]
    assert any(name.startswith("postgresql-") for name in names)
    assert any(name.startswith("spark-sql-kafka-0-10_") for name in names)


@pytest.mark.parametrize("version", ["3.5.7", "4.4.0"])
def test_jars_that_no_job_takes_are_not_brought(version, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HARVEST_CACHE", str(tmp_path))
    assert main(["--spark-version", version]) == ConfigError.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert f"not tested with Spark {version}" in said.err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_brought_is_an_error(tmp_path, capsys, monkeypatch):
    (tmp_path / "jars").write_text("no folder")
    monkeypatch.setenv("HARVEST_CACHE", str(tmp_path))
    assert main([]) != 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "next step" in said.err
