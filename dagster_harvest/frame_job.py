"""Write the frames of a function into an outbox, a batch for each partition. Dagster runs this module in Spark's
process, by `python -m dagster_harvest.pipes_main dagster_harvest.frame_job`.

The declaration comes as an extra of Dagster Pipes; connection and outbox come as HARVEST_DSN and HARVEST_OUTBOX_TABLE.
Each batch is printed as a JSON object in a line, with its `partition`; the sum of all batches follows.

Exit codes: as of `harvest_lib.spark.outbox_sink`.
"""

import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from dagster_pipes import PipesContext
from pyspark.sql import DataFrame

from dagster_harvest.import_path import imported
from dagster_harvest.pipes_main import FRAMES_EXTRA
from harvest_lib.errors import ConfigError
from harvest_lib.spark.command import run, tell
from harvest_lib.spark.outbox_sink import BatchId, Fixed, Records, sink
from harvest_lib.spark.session import jdbc_jars, spark_session
from harvest_lib.spark.summaries import summarize

_FIELD = "writer.function"


def main() -> int:
    """Write the batches of the declaration; return the exit code."""
    job = PipesContext.get().extras[FRAMES_EXTRA]
    return run(lambda: _run(job), interrupted="run it again, nothing is written twice")


def _run(job: Mapping[str, Any]) -> None:
    path, windows = job["function"], job["windows"]
    function, records = imported(path, field=_FIELD), _records(job["records"])
    names = asked(function, path, {"spark", *arguments_of(windows[0])})
    reports, began = [], time.monotonic()
    with _session(is_needed="spark" in names) as session:
        for window in windows:
            given = {**session, **arguments_of(window)}
            report = sink(
                _frame(function, path, {name: given[name] for name in names}),
                dsn=os.environ["HARVEST_DSN"],
                batch_id=f"{job['batch_prefix']}-{window['key']}",
                records=records,
                table=job["table"],
                outbox=os.environ["HARVEST_OUTBOX_TABLE"],
                batch_column=job["batch_column"],
                allow_empty=True,
            )
            reports.append(report)
            tell(json.dumps({"partition": window["key"], **json.loads(report.as_json())}))
    tell(summarize(reports, seconds=time.monotonic() - began).as_json())


def _records(declared: Mapping[str, Any]) -> Records:
    """Return the declaration of a record as the sink has it. Raises ConfigError."""
    headers = {**declared["headers"], **{name: Fixed(text) for name, text in declared["fixed_headers"].items()}}
    if declared["batch_header"] is not None:
        headers[declared["batch_header"]] = BatchId()
    return Records(headers=headers, **{name: declared[name] for name in ("topic", "key", "value", "order_by")})


def arguments_of(window: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function can have for its partition: none if there are no partitions."""
    if window["start"] is None:
        return {}
    return {"key": window["key"], **{name: datetime.fromisoformat(window[name]) for name in ("start", "end")}}


def asked(function: Callable[..., Any], path: str, given: set[str]) -> set[str]:
    """Return the names in `given` that are parameters of the function. Raises ConfigError if the function has another
    parameter without a default."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return given
    needed = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    if strange := [name for name in needed if name not in given]:
        raise ConfigError(
            f"{path} has the parameter {strange[0]}, for which there is no value",
            field=_FIELD,
            next_step=f"use the parameters {', '.join(sorted(given))} only, or give {strange[0]} a default",
        )
    return {each.name for each in parameters} & given


def _frame(function: Callable[..., Any], path: str, arguments: Mapping[str, Any]) -> DataFrame:
    frame = function(**arguments)
    if not isinstance(frame, DataFrame):
        raise ConfigError(
            f"{path} returned {type(frame).__name__}, not a DataFrame of Spark",
            field=_FIELD,
            next_step="return the frame of the partition, an empty frame if there are no rows",
        )
    return frame


@contextmanager
def _session(*, is_needed: bool) -> Iterator[dict[str, Any]]:
    """Yield a local session under the name of its parameter. A function without that parameter brings a session of its
    own, which must have the JDBC driver of Postgres among its jars."""
    if not is_needed:
        yield {}
        return
    jars = jdbc_jars(None)
    with (
        tempfile.TemporaryDirectory(prefix="outbox-frames-", ignore_cleanup_errors=True) as folder,
        spark_session(jars=jars, work_folder=Path(folder)) as spark,
    ):
        yield {"spark": spark}


if __name__ == "__main__":
    sys.exit(main())
