"""The error that a stopped pipeline raises, and the short text of an error for logs."""

from harvest_lib.errors import HarvestError, PipelineError


def one_line(error: BaseException) -> str:
    """Return the cause and the evidence of a HarvestError, without its next step. For any other error, return its type
    and its text."""
    if isinstance(error, HarvestError):
        return "; ".join(filter(None, [error.cause, error.evidence]))
    return f"{type(error).__name__}: {error}"


def stop_error(error: BaseException, otherwise: str) -> HarvestError:
    """Return a HarvestError unchanged. Return any other error, for example of an adaptor, wrapped in a PipelineError
    with the cause `otherwise`."""
    if isinstance(error, HarvestError):
        return error
    wrapped = PipelineError(
        otherwise,
        evidence=one_line(error),
        next_step="correct that, and run it again: nothing acknowledged is lost, and it resumes where it stood",
    )
    wrapped.__cause__ = error
    return wrapped
