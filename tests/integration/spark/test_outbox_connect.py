"""The formats `outbox` and `harvested`, by way of Spark Connect: the client has neither Java nor a driver."""

import re
import subprocess
import sys

import pyspark
import pytest
from support.installed import build, find_uv, install
from support.outbox_format import ROOT, connect_server, connected, target
from support.outbox_source import HAS_TARGETS
from support.sink import Database
from support.spark import java_named
from support.topic_sender import Sender

from harvest_lib.spark.data_source import register
from harvest_lib.spark.data_source.harvested import harvested

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with java_named(), connected(tmp_path_factory.mktemp("connect")) as made:
        yield made


def ids(frame):
    return sorted(row.id for row in frame.select("id").collect())


def test_outbox_and_topics_are_read_by_way_of_connect(
    spark, make_outbox, tmp_path, bootstrap_servers, make_topic, monkeypatch
):
    native = make_outbox(size=10, ahead=3)
    native.write(25)
    assert ids(spark.read.format("outbox").options(dsn=native.dsn, shards="2").load()) == list(range(1, 26))
    for taken in (25,) if HAS_TARGETS else (10, 20, 25):
        stream = spark.readStream.format("outbox").options(dsn=native.dsn, maxRecordsPerBatch="10").load()
        query = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
        assert ids(spark.read.parquet(str(tmp_path / "rows"))) == list(range(1, taken + 1))
    with pytest.raises(Exception, match="'none' is no number from 1 to"):
        spark.read.format("outbox").options(dsn=native.dsn, shards="none").load().collect()
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as `builder.remote` does, which was not asked here
    topic = make_topic()
    assert harvested(spark, [topic], kafka={"bootstrap.servers": bootstrap_servers}).count() == 0
    sender = Sender(bootstrap_servers, topic)
    sender.send(7)
    sender.flush()
    register(spark)
    options = {"kafka.bootstrap.servers": bootstrap_servers, "topics": topic}
    assert [row.outbox_id for row in spark.read.format("harvested").options(**options).load().collect()] == [7]
    stream = spark.readStream.format("harvested").options(**options).load().writeStream.format("parquet")
    query = stream.option("checkpointLocation", str(tmp_path / "delivered-checkpoint")).trigger(availableNow=True)
    query.start(str(tmp_path / "delivered")).awaitTermination()
    assert [row.outbox_id for row in spark.read.parquet(str(tmp_path / "delivered")).collect()] == [7]


PAGE = (ROOT / "docs" / "spark-submit.md").read_text(encoding="utf-8")
CLIENT, WITH_PACKAGE = re.findall(
    r"^```python\n(.*?)^```", PAGE[PAGE.index("\n## Spark Connect\n") :], re.MULTILINE | re.DOTALL
)
SEVERAL_WAYS = """
from harvest_lib.spark.data_source import register
from harvest_lib.spark.data_source.harvested import harvested

sink(orders, dsn=where["dsn"], batch_id="orders-3", records=records)
print(harvested(spark, [os.environ["TOPIC"]], kafka={"bootstrap.servers": os.environ["SERVERS"]}).count())
register(spark)
"""


@pytest.fixture
def database(dsn):
    made = Database(dsn, "native")
    yield made
    made.connection.close()


def placed(program, address, folder):
    """Return a program of the page for a server of this machine."""
    here = program.replace("sc://spark.example.com:15002", address)
    return here.replace("/data/checkpoint", str(folder / "checkpoint"))


@pytest.fixture(scope="module")
def client(parts, tmp_path_factory):
    """Make an environment of `pyspark-client` alone, or with the wheel too; run a program there, without any Java."""
    uv = find_uv(parts)

    def made(with_wheel):
        venv = tmp_path_factory.mktemp("client")
        if with_wheel:
            install(uv, build(uv, tmp_path_factory.mktemp("wheel")), venv)
        else:
            subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, venv], check=True)
        wanted = f"pyspark-client>=4.0,<={pyspark.__version__}"  # the newest that there is, not newer than the server
        subprocess.run([uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", wanted], check=True)

        def run(program, dsn, **variables):
            options = target(dsn)
            environment = {"PATH": "", "HARVEST_DSN": options["dsn"], "PGPASSWORD": options["password"], **variables}
            if not pyspark.__version__.startswith(("4.0.", "4.1.")):
                environment["SPARK_HOME"] = str(venv)  # without it, the client of 4.2 ends at its import
            done = subprocess.run(
                [venv / "bin" / "python", "-c", program],
                cwd=venv, env=environment, capture_output=True, text=True, timeout=200, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
            return done.stdout

        return run

    return made


@pytest.mark.timeout(600)
def test_a_client_of_pyspark_client_alone_runs_the_program_of_the_page(client, database, tmp_path):
    with java_named(), connect_server(tmp_path) as address:
        said = client(with_wheel=False)(placed(CLIENT, address, tmp_path), database.dsn)
    assert said == "10\n"
    assert database.ask("SELECT batch, rows FROM outbox_batches ORDER BY promoted_at") == [
        ("orders-1", 10),
        ("copies:0", 10),
    ]


@pytest.mark.timeout(600)
def test_with_the_package_it_runs_the_sink_a_listener_and_names_errors(
    client, database, tmp_path, make_topic, bootstrap_servers
):
    first, last = WITH_PACKAGE.split("spark.stop()")
    again = CLIENT[CLIENT.index("query = (") :]
    with java_named(), connect_server(tmp_path) as address:
        program = placed(f"{CLIENT}{first}{SEVERAL_WAYS}{again}spark.stop(){last}", address, tmp_path)
        said = client(with_wheel=True)(program, database.dsn, TOPIC=make_topic(), SERVERS=bootstrap_servers)
    counted, by_sink, delivered, by_listener = said.splitlines()
    assert (counted, delivered) == ("10", "0")
    assert by_sink.startswith("BatchReport(batch='orders-2', rows=10, status='promoted'")
    assert by_listener.startswith("BatchReport(batch='copies:1', rows=20, status='promoted'")
    assert [batch for (batch,) in database.ask("SELECT batch FROM outbox_batches ORDER BY promoted_at")] == [
        *("orders-1", "copies:0", "orders-2", "orders-3", "copies:1"),
    ]
