"""The programs of docs/spark-reading.md, run as they stand."""

import re
from pathlib import Path

import pytest
from support.native import Native
from support.outbox_source import without_password
from support.topic_sender import Sender

from harvest_lib.archive import archive_segments
from harvest_lib.source import server_identity
from harvest_lib.spark.data_source import register

pytestmark = [pytest.mark.full, pytest.mark.spark]

PAGE = Path(__file__).parents[3] / "docs" / "spark-reading.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_programs_of_the_page_run(spark, dsn, tmp_path, monkeypatch, make_topic, bootstrap_servers, capsys):
    register(spark)
    native = Native(without_password(dsn, tmp_path))
    native.write(5)
    topic = make_topic()
    sender = Sender(bootstrap_servers, topic)
    sender.send(7)
    sender.flush()
    monkeypatch.setenv("HARVEST_DSN", native.dsn)
    monkeypatch.setenv("SPARK_FOLDER", str(tmp_path))
    monkeypatch.setenv("BOOTSTRAP_SERVERS", bootstrap_servers)
    monkeypatch.setenv("ARCHIVE_URL", str(tmp_path / "archive"))
    list(archive_segments(native.connection, native.table, str(tmp_path / "archive")))
    system = server_identity.place(native.connection).system
    monkeypatch.setenv("SNAPSHOT", f"{native.snapshot()}@{system}")
    assert len(PROGRAMS) == 7
    for program in PROGRAMS:
        exec(program.replace('"orders"', repr(topic)), {})  # noqa: S102 - ours
    native.connection.close()
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "records")).collect()) == [1, 2, 3, 4, 5]
    assert [row.outbox_id for row in spark.read.parquet(str(tmp_path / "delivered")).collect()] == [7]
    shown = capsys.readouterr().out
    assert "|          t|    5|" in shown
    assert "|outbox_id|" in shown
