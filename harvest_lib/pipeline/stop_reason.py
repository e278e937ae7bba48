"""What is told of an error that stopped a pipeline, and what is noted of it in a line."""

from harvest_lib.errors import HarvestError, PipelineError


def one_line(error: BaseException) -> str:
    """Return what went wrong and how that is known: what to do about it is told where a person reads."""
    if isinstance(error, HarvestError):
        return "; ".join(filter(None, [error.cause, error.evidence]))
    return f"{type(error).__name__}: {error}"


def stop_error(error: BaseException, otherwise: str) -> HarvestError:
    """Return an error of ours as it is; any other, of an adaptor say, with what to do about it."""
    if isinstance(error, HarvestError):
        return error
    told = PipelineError(
        otherwise,
        evidence=one_line(error),
        next_step="mend that, and run it again: nothing that was acknowledged is lost, and it resumes where it stood",
    )
    told.__cause__ = error
    return told
