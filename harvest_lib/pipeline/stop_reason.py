"""The error that a stopped pipeline raises, and its short form for logs."""

from harvest_lib.errors import HarvestError, PipelineError


def one_line(error: BaseException) -> str:
    """Return cause and evidence of an error: the next step is left out."""
    if isinstance(error, HarvestError):
        return "; ".join(filter(None, [error.cause, error.evidence]))
    return f"{type(error).__name__}: {error}"


def stop_error(error: BaseException, otherwise: str) -> HarvestError:
    """Return an error of ours as it is; any other, of an adaptor say, with a next step."""
    if isinstance(error, HarvestError):
        return error
    wrapped = PipelineError(
        otherwise,
        evidence=one_line(error),
        next_step="mend that, and run it again: nothing that was acknowledged is lost, and it resumes where it stood",
    )
    wrapped.__cause__ = error
    return wrapped
