"""The lines of the documentation that install this package, and the code of its pages that has to run after each."""

import ast
import re
import shlex
import textwrap
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("harvest_lib", "dagster_harvest")

PARTS = {
    "": [
        *(
            "harvest_lib",
            "harvest_lib.outbox",
            "harvest_lib.cli.run",
            "harvest_lib.cli.check",
            "harvest_lib.cli.status",
        ),
        *("harvest_lib.harvester.harvest", "harvest_lib.consume", "harvest_lib.consume.telemetry", "harvest_lib.audit"),
        *("harvest_lib.conninfo", "harvest_lib.examples.bank_transfer", "harvest_lib.cli.pipeline"),
        *("harvest_lib.harvester.telemetry", "harvest_lib.telemetry.server"),
    ],
    "pipeline": [
        *("harvest_lib.pipeline.declaration", "harvest_lib.pipeline.pipeline", "harvest_lib.pipeline.operations"),
        *(f"harvest_lib.pipeline.adaptors.{name}" for name in ("kafka", "outbox", "postgres", "stdout")),
        "harvest_lib.pipeline.adaptors.file.json_lines",
    ],
    "local": ["harvest_lib.local_stack", "harvest_lib.local_stack.secure"],
    "spark": [
        *("harvest_lib.spark.outbox_sink", "harvest_lib.spark.data_source", "harvest_lib.spark.data_source.harvested"),
        *(
            "harvest_lib.spark.audit.__main__",
            "harvest_lib.spark.replay.__main__",
            "harvest_lib.spark.jars",
            "harvest_lib.spark.flights.by_day",
        ),
    ],
    "quality,spark": ["harvest_lib.spark.quality"],
    "dagster": ["dagster_harvest", "dagster_harvest.components", "dagster_harvest.resources"],
    "dagster,spark": ["dagster_harvest.frame_job"],
    "dagster,quality,spark": ["dagster_harvest.quality"],
    "archive,dagster,spark": ["dagster_harvest.archive", "dagster_harvest.replay"],
    "demo,spark": ["harvest_lib.spark.flights.by_month"],
    "airflow": [
        *(
            f"harvest_lib.airflow.operators.{name}"
            for name in ("append", "audit", "dagster", "event_runs", "outbox", "parked", "replay", "segments")
        ),
        "harvest_lib.airflow.assets",
        "harvest_lib.airflow.triggers.outbox_events",
        "harvest_lib.airflow.triggers.topic_events",
        "harvest_lib.airflow.sensors.outbox",
        "harvest_lib.airflow.provider",
    ],
    "archive": ["harvest_lib.archive"],
    "parquet": ["harvest_lib.pipeline.declaration", "harvest_lib.pipeline.adaptors.file.parquet"],
    "certificates": ["harvest_lib.certificates"],
}
"""Modules by the extras that their page says to install."""

BEFORE = {
    "docs/audit.md": "quality,spark",
    "docs/airflow.md": "airflow",
    "docs/airflow-dagster.md": "airflow",
    "docs/airflow-events.md": "airflow",
    "docs/consuming.md": "",
    "docs/dagster-assets.md": "dagster",
    "docs/dagster-run.md": "dagster",
    "docs/embedding.md": "",
    "docs/exactly-once.md": "",
    "docs/local-stack.md": "demo,local,spark",
    "docs/monitoring.md": "",
    "docs/spark-reading.md": "spark",
    "docs/spark-submit.md": "quality,spark",
    "docs/spark.md": "spark",
    "docs/writing.md": "",
    **{f"docs/examples/{name}.py": "" for name in ("basic", "consume_to_outbox", "consumer", "custom_logger")},
    **{f"docs/examples/{name}.py": "" for name in ("deduplicated", "events", "sasl_ssl")},
}
"""Extras by page, for its code above its first line that installs, and for all of it if it has no such line.

A page that only has commands of `harvest` needs none.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """Requirements that a line installs: this package with extras, separated by commas, and more."""

    extras: str
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name a test."""
        return " ".join((f"[{self.extras}]", *self.more))


@dataclass(slots=True)
class Code:
    """Code of a page that uses this package."""

    imports: set[str] = field(default_factory=set)
    """Statements."""
    modules: set[str] = field(default_factory=set)
    """What `python -m` runs."""
    commands: set[str] = field(default_factory=set)
    """Words after `harvest`."""


_PIECE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<fenced>.*?)^(?P=indent)```"
    r"|(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n)+)"
    r"|`(?P<span>[^`]+)`",
    re.MULTILINE | re.DOTALL,
)
_INSTALL = re.compile(r"\b(?:pip3? install|uv add|uv tool install|pipx install)\s([^\n&]*)")
_OURS = re.compile(r"(?:\.|/\S*outbox-harvester|\S*outbox_harvester-\S+\.whl|outbox-harvester)(?:\[([\w,-]+)\])?")
_COMMENT = re.compile(r"(?:^|\s)#\s.*$", re.MULTILINE)
_MODULE = re.compile(r"python[\d.]* -m (harvest_lib[\w.]*)")
_COMMAND = re.compile(r"(?:^|[\s/(])harvest((?: [a-z][a-z-]*)+)", re.MULTILINE)
_TYPE = re.compile(r"^\s*type: ((?:dagster_harvest|harvest_lib)[\w.]+)\.(\w+)$", re.MULTILINE)


def pages() -> list[str]:
    """Return the paths of the pages and examples, from the root of the clone."""
    found = [*ROOT.glob("README.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "examples").rglob("*.py")]
    return sorted(str(each.relative_to(ROOT)) for each in found if "decisions" not in each.parts)


def lines_in(text: str) -> list[Line]:
    """Return what the lines of a shell install, without those that do not install this package."""
    found = []
    for rest in _INSTALL.findall(_COMMENT.sub("", text.replace("\\\n", " "))):
        words = shlex.split(rest)
        extras = [words[place + 1] for place, word in enumerate(words) if word == "--extra"]
        values = {place + 1 for place, word in enumerate(words) if word in {"--extra", "--python"}}
        named = [word for place, word in enumerate(words) if place not in values and not word.startswith("-")]
        ours = [match for match in map(_OURS.fullmatch, named) if match]
        if ours:
            more = tuple(word for word in named if not _OURS.fullmatch(word))
            found.append(Line(",".join([*filter(None, ours[0].groups()), *extras]), more))
    return found


def code_of(page: str) -> dict[Line | None, Code]:
    """Return the code of a page by the line above it that installs, or by each line of the paragraph that has several.

    None is for code without such a line, on a page that `BEFORE` does not have. Dagster's components are loaded in
    projects with its extra.
    """
    text, suffix = (ROOT / page).read_text(encoding="utf-8"), Path(page).suffix
    found: dict[Line | None, Code] = defaultdict(Code)
    lines: list[Line | None] = [Line(BEFORE[page]) if page in BEFORE else None]
    last = 0
    for match in _PIECE.finditer(text if suffix == ".md" else f"```{suffix[1:]}\n{text}```"):
        piece, language = match["fenced"] or match["indented"] or " ".join(match["span"].split()), match["language"]
        if language in {"yaml", "yml"}:
            found[Line("dagster")].imports |= {f"from {module} import {name}" for module, name in _TYPE.findall(piece)}
        elif language in {"python", "py"}:
            for line in lines:
                found[line].imports |= _imports(piece)
        else:
            if installs := lines_in(piece):
                is_same = last and "\n\n" not in text[last : match.start()]
                lines, last = [*(lines if is_same else ()), *installs], match.end()
            shell = _COMMENT.sub("", piece) if match["span"] is None else ""
            for line in lines:
                found[line].modules |= set(_MODULE.findall(shell))
            for line in lines:
                found[line or Line("")].commands |= {words.strip() for words in _COMMAND.findall(shell)}
    return {line: code for line, code in found.items() if code != Code()}


def _imports(piece: str) -> set[str]:
    nodes = ast.walk(ast.parse(textwrap.dedent(piece)))
    return {ast.unparse(each) for each in nodes if isinstance(each, ast.Import | ast.ImportFrom) and _is_ours(each)}


def _is_ours(node: ast.Import | ast.ImportFrom) -> bool:
    name = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
    return name.split(".")[0] in OURS
