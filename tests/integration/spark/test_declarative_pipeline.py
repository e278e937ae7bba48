"""A declarative pipeline of Spark whose sink is an outbox: `docs/examples/spark_pipeline`, run by `spark-pipelines`."""

import json
import subprocess
from pathlib import Path

import pyspark
import pytest
from support.outbox_format import environment, target
from support.sink import Database

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "spark_pipeline"


def run(folder, dsn):
    """Run the pipeline once: it takes what is there, and ends."""
    options = target(dsn)
    variables = {"HARVEST_DSN": options["dsn"], "PGPASSWORD": options["password"], "ORDERS_FOLDER": str(folder / "in")}
    spec = folder / "spark-pipeline.yml"
    spec.write_text(
        (EXAMPLE / "spark-pipeline.yml")
        .read_text()
        .replace("file:///data/orders-pipeline", (folder / "state").as_uri())
    )
    (folder / "orders.py").write_text((EXAMPLE / "orders.py").read_text())
    command = [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run", "--spec", spec]
    command += ["--remote", "local[2]", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        command, env=environment() | variables, cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]


def test_a_pipeline_writes_each_order_once(dsn, tmp_path):
    database = Database(dsn, "native")
    (tmp_path / "in").mkdir()
    for turn in range(2):
        lines = [json.dumps({"order_id": 10 * turn + i, "customer": f"c{i % 3}", "cents": i}) for i in range(10)]
        (tmp_path / "in" / f"{turn}.json").write_text("\n".join(lines) + "\n")
        run(tmp_path, dsn)
    values = [json.loads(value) for _, value, _, _ in database.records()]
    assert [each["order_id"] for each in values] == list(range(20))
    assert database.ask("SELECT batch, rows FROM outbox_batches ORDER BY batch") == [
        ("orders-pipeline:0", 10),
        ("orders-pipeline:1", 10),
    ]
