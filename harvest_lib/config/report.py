"""One error for everything that is wrong with a configuration."""

from collections.abc import Sequence

from harvest_lib.config.problems import Origins, Problem
from harvest_lib.config.spelling import goharvest_name
from harvest_lib.errors import ConfigError


def config_error(problems: Sequence[Problem], origins: Origins) -> ConfigError:
    """Put problems into one error, in the order of their lines; its attributes are those of the first."""
    placed = [(each, *_place(each, origins)) for each in problems]
    placed.sort(key=lambda entry: (entry[2] is None, entry[2] or 0))
    first, source, line = placed[0]
    each_alone = [
        ConfigError(_sentence(each, origins), field=_field(each, origins), source=where, line=at, next_step=each.remedy)
        for each, where, at in placed
    ]
    if len(placed) == 1:
        return each_alone[0]
    listed = [f"{_prefix(where, at)}{_sentence(each, origins)}; {each.remedy}" for each, where, at in placed]
    cause = "\n    ".join([f"{len(placed)} settings are wrong:", *listed])
    next_step = "correct all of them; they were checked together"
    error = ConfigError(cause, field=_field(first, origins), source=source, line=line, next_step=next_step)
    error.problems = each_alone
    return error


def _place(problem: Problem, origins: Origins) -> tuple[str, int | None]:
    return (origins.file, problem.line) if problem.line is not None else origins.place(problem.path)


def _prefix(source: str, line: int | None) -> str:
    if line is not None:
        return f"line {line}: "
    return f"{source}: " if source else ""


def _sentence(problem: Problem, origins: Origins) -> str:
    field = _field(problem, origins)
    return f"`{field}` {problem.message}" if field else problem.message


def _field(problem: Problem, origins: Origins) -> str:
    """Spell a path as its source does. The keys of Kafka's settings are in no one's spelling but Kafka's, and
    those of `columns` are parts of a record."""
    source, _ = _place(problem, origins)
    path = problem.path
    if problem.written or not origins.file or source != origins.file:
        return problem.written or ".".join(path)
    if path[:1] in {("base_kafka_config",), ("producer_kafka_config",), ("columns",)}:
        return ".".join([goharvest_name(path[0]), *path[1:]])
    return ".".join(goharvest_name(part) for part in path)
