"""What is told of an error that stopped a pipeline."""

from harvest_lib.errors import HarvestError, PipelineError


def stopped_by(error: BaseException, otherwise: str) -> HarvestError:
    """Return an error of ours as it is; any other, of an adaptor say, with what to do about it."""
    if isinstance(error, HarvestError):
        return error
    told = PipelineError(
        otherwise,
        evidence=f"{type(error).__name__}: {error}",
        next_step="mend that, and run it again: nothing that was acknowledged is lost, and it resumes where it stood",
    )
    told.__cause__ = error
    return told
