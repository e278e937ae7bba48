"""The memory of a pipeline between Parquet files, whose library keeps much of its own."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.peak import MEGABYTE, peak_of_pipeline

pytestmark = pytest.mark.gate

COUNT, SIZE = 150, 1_000_000


@pytest.mark.full
def test_rows_of_a_megabyte_stay_in_the_bound_of_every_pipeline(tmp_path):
    """One row group, with the value once, in its dictionary: read, and written in other files."""
    (tmp_path / "in").mkdir()
    note = pa.DictionaryArray.from_arrays(pa.array([0] * COUNT, pa.int32()), ["x" * SIZE])
    pq.write_table(pa.table({"id": list(range(COUNT)), "note": note}), tmp_path / "in" / "1.parquet")
    source = {"adaptor": "file", "path": str(tmp_path / "in"), "format": "parquet"}
    target = {"adaptor": "file", "path": str(tmp_path / "out"), "format": "parquet"}
    declaration = {"folder": str(tmp_path / "pipeline"), "reader": source, "writers": {"w": target}}
    peak = peak_of_pipeline(tmp_path, declaration, is_done=lambda: False)  # it ends by itself
    written = sum(pq.read_metadata(each).num_rows for each in (tmp_path / "out").rglob("*.parquet"))
    assert written == COUNT
    assert peak <= 256 * MEGABYTE + 3 * SIZE, f"{peak / MEGABYTE:.0f} MB"
