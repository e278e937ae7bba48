"""Writers and readers of files, and messages for them."""

from harvest_lib.pipeline.adaptors.file import ADAPTOR
from harvest_lib.pipeline.message import Op, PipelineMessage

AT = 1_356_999_300_123


def message(op=Op.INSERT, namespace="public.t", offset=0, **data):
    return PipelineMessage(op, AT, namespace, data, offset=offset)


def writer(path, **options):
    return ADAPTOR.writes.make(ADAPTOR.writes.options(path=str(path), **options))


def reader(path, **options):
    return ADAPTOR.reads.make(ADAPTOR.reads.options(path=path, **options))


def everything(made, last=None):
    """All messages that are no NOOPs, and the last ones of each namespace."""
    last, found = dict(last or {}), []
    for batch in made.read(last):
        found += [each for each in batch if each.op is not Op.NOOP]
        last |= {each.namespace: each for each in batch}
    return found, last
