"""A writer of messages into the tables of a source."""

import pytest
from support.pipeline_ends import opened

from harvest_lib.pipeline.adaptors import writing
from harvest_lib.pipeline.message import PipelineMessage


@pytest.fixture
def write(source):
    writers = []

    def written(*messages, **options):
        writers.append(opened(writing("postgres"), data_source=source.dsn, **options))
        writers[-1].write(
            [
                PipelineMessage(op, 1, namespace, data, offset=7 + place)
                for place, (op, namespace, data) in enumerate(messages)
            ]
        )

    yield written
    for each in writers:
        each.close()
