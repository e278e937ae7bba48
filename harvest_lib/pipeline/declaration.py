"""Declaration of a pipeline in a YAML file: a reader, and writers with their filters and transforms.

    folder: flights.pipeline            # folder of commit log and offsets; a relative path starts at this file's folder
    reader:
      adaptor: postgres
      …                                 # options of the adaptor
    writers:
      lake:                             # any name
        adaptor: file
        …                               # options of the adaptor
        namespace: ^public\\.flights$    # default: everything
        transforms:
          - omit: [tailnum]
        on_error: stop                  # or stop_writer: other writers continue
        on_transform_error: stop        # or park: the message is parked in the folder

All problems of a file are reported together, each with its line and without values from the file.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from harvest_lib.config.problems import Origins, Place, Problem, config_error, problems_of, unknown
from harvest_lib.config.yaml_reader import INT, YamlReader
from harvest_lib.errors import HarvestError
from harvest_lib.pipeline import adaptors
from harvest_lib.pipeline.adaptors import Reader, Side, Writer
from harvest_lib.pipeline.settings import PipelineSettings, WriterSettings, by_their_names_in_files, name_complaint
from harvest_lib.pipeline.transforms import Transform, loading

_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")
_VARIABLE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")

Model = TypeVar("Model", bound=BaseModel)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredReader:
    """The declared source of messages. `open` returns a new reader, which connects only when it is used."""

    adaptor: str
    open: Callable[[], Reader]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredWriter:
    """A declared destination of messages. `open` returns a new writer, which connects only when it is used."""

    name: str
    adaptor: str
    open: Callable[[], Writer]
    settings: WriterSettings
    transforms: Sequence[tuple[str, Transform]] = ()


_LEAST_AHEAD, _BATCHES_AHEAD = 10_000, 10
"""Lower numbers would make readers wait without need. Higher numbers would make a restart after a kill slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declaration of a pipeline: settings, reader and writers."""

    settings: PipelineSettings
    reader: DeclaredReader
    writers: Sequence[DeclaredWriter]

    @property
    def name(self) -> str:
        """Return the pipeline's name, by default the name of its folder."""
        return self.settings.name or self.settings.folder.name

    @property
    def folder(self) -> Path:
        """Return the folder of the commit log and the offsets."""
        return self.settings.folder

    @property
    def max_behind_messages(self) -> int:
        """Return how many messages the reader may be ahead of the slowest writer."""
        largest = max((each.settings.batch_messages for each in self.writers), default=0)
        return self.settings.max_behind_messages or max(_LEAST_AHEAD, _BATCHES_AHEAD * largest)


def load(path: str | os.PathLike[str]) -> Declaration:
    """Read and check a declaration, without any connection. Raises ConfigError with all problems of the file."""
    return _Reading(Path(path), needed="`folder`, `reader` and `writers`").declaration()


class _Reading(YamlReader):
    """Reads a declaration from a file, and collects problems. `${NAME}` in a text is replaced by an environment
    variable, so that secrets need not be in the file."""

    def declaration(self) -> Declaration:
        try:
            values = self.value(self.root, ())
        except RecursionError:  # an alias is inside its own anchor
            values = {}
            self._note((), "the file contains itself", "write it without that alias")
        settings = self._settings(values)
        reader = self._reader(values.get("reader"))
        writers = self._writers(values.get("writers"))
        if self.problems or settings is None or reader is None:
            raise config_error(self.problems, self._origins)
        return Declaration(settings=settings, reader=reader, writers=writers)

    def scalar(self, node: yaml.Node, path: Place) -> Any:
        """Return the value of a node, with variables replaced. If the value is invalid, note the problem and return
        None."""
        # YAML reads 0123 as 83, and 1_000 as 1000. Settings of Kafka clients are texts: such a text stays unchanged.
        is_other_number = node.tag == INT and not _PLAIN_NUMBER.fullmatch(node.value)
        found = node.value if path[-2:-1] == ("kafka",) and is_other_number else self.construct(node, path)
        if not isinstance(found, str):
            return None if found is ... else found
        if missing := sorted({name for name in _VARIABLE.findall(found) if name not in os.environ}):
            remedy = f"set {', '.join(missing)}, or write the value itself"
            self._note(path, f"needs {missing[0]}, which is not set", remedy)
            return found
        return _VARIABLE.sub(lambda match: os.environ[match[1]], found)

    def spelled(self, path: Place) -> str:
        """Return a path in readable form, such as `writers.lake.transforms[2]`. Numbers begin with 1."""
        text = ""
        for part in path:
            text += f"[{int(part) + 1}]" if part.isdigit() and text else f".{part}" if text else part
        return text

    def _settings(self, values: dict[str, Any]) -> PipelineSettings | None:
        known = by_their_names_in_files(PipelineSettings)
        given = {name: each for name, each in values.items() if name not in {"reader", "writers"}}
        given = self._without_unknown(given, (), known, [*known, "reader", "writers"])
        settings = self._checked(PipelineSettings, given, ())
        if settings is None:
            return None
        if settings.name and (complaint := name_complaint(settings.name)):
            self._note(("name",), complaint, "choose another")
        return settings.model_copy(
            update={
                "name": settings.name or self.path.stem,
                "folder": self.path.parent.absolute() / settings.folder.expanduser(),
            }
        )

    def _reader(self, values: object) -> DeclaredReader | None:
        given = self._mapping(values, ("reader",))
        found = None if given is None else self._adaptor(given, ("reader",), adaptors.reading)
        return None if found is None else DeclaredReader(adaptor=found[0], open=found[1])

    def _writers(self, values: object) -> list[DeclaredWriter]:
        given = self._mapping(values, ("writers",))
        if given is not None and not given:
            self._note(("writers",), "is empty", "write a name for each, and its settings below it")
        found = [self._writer(name, each) for name, each in (given or {}).items()]
        return [each for each in found if each is not None]

    def _writer(self, name: str, values: object) -> DeclaredWriter | None:
        path = ("writers", name)
        if complaint := name_complaint(name):
            self._note(path, complaint, "choose another")
        given = self._mapping(values, path)
        if given is None:
            return None
        ours = by_their_names_in_files(WriterSettings)
        settings = self._checked(WriterSettings, {key: each for key, each in given.items() if key in ours}, path)
        transforms = self._transforms(given.get("transforms"), path)
        theirs = {key: each for key, each in given.items() if key not in ours}
        found = self._adaptor(theirs, path, adaptors.writing, beside=ours)
        if settings is None or found is None:
            return None
        return DeclaredWriter(name=name, adaptor=found[0], open=found[1], settings=settings, transforms=transforms)

    def _transforms(self, entries: object, path: Place) -> list[tuple[str, Transform]]:
        found = []
        for number, entry in enumerate(entries if isinstance(entries, list) else []):
            try:
                found.append(loading.load(entry, beside=self.path.parent.absolute()))
            except loading.NotATransform as error:
                self._note((*path, "transforms", str(number)), str(error), "docs/pipelines.md lists their settings")
        return found

    def _adaptor(
        self, given: dict[str, Any], path: Place, look: Callable[[str], Side[Made]], beside: Sequence[str] = ()
    ) -> tuple[str, Callable[[], Made]] | None:
        """Return an adaptor's name and the factory of its reader or writer; None if a problem was noted. `look` returns
        the reading or writing side of an adaptor. `beside` has the names of allowed settings that do not belong to the
        adaptor."""
        name = given.get("adaptor")
        if not isinstance(name, str) or not name:
            self._note((*path, "adaptor"), "is missing", f"choose one of {', '.join(adaptors.names())}", at=path)
            return None
        try:
            side = look(name)
        except HarvestError as error:  # an adaptor of another package may fail in any way
            self._note((*path, "adaptor"), error.cause, error.next_step)
            return None
        theirs = {key: each for key, each in given.items() if key != "adaptor"}
        known = by_their_names_in_files(side.options)
        if side.options.model_config.get("extra") == "forbid":
            theirs = self._without_unknown(theirs, path, known, [*known, "adaptor", *beside])
        options = self._checked(side.options, theirs, path)
        return None if options is None else (name, partial(side.make, options))

    def _checked(self, model: type[Model], values: Mapping[str, Any], path: Place) -> Model | None:
        """Return a valid model with these values. If the values are invalid, note each problem and return None."""
        try:
            return model.model_validate(dict(values))
        except ValidationError as error:
            for each in problems_of(error):
                place = (*path, *each.path)
                self._note(place, each.message, each.remedy)
            return None

    def _without_unknown(
        self, values: Mapping[str, Any], path: Place, known: Sequence[str], all_known: Sequence[str]
    ) -> dict[str, Any]:
        """Return the settings whose name is in `known`, and note each other setting with the nearest name in
        `all_known`."""
        for key in values.keys() - set(known):
            problem = unknown(key, all_known)
            self._note((*path, key), problem.message, problem.remedy)
        return {key: each for key, each in values.items() if key in known}

    def _mapping(self, values: object, path: Place) -> dict[str, Any] | None:
        if isinstance(values, dict):
            return values
        if values is None:
            self._note(path, "is missing", "write it, and its settings below it as indented `key: value` lines")
        else:
            self._note(path, "is not a mapping", "write its settings as indented `key: value` lines")
        return None

    def _note(self, path: Place, message: str, remedy: str, *, at: Place | None = None) -> None:
        _, line = self._origins.place(path if at is None else at)
        self.problems.append(Problem(path=path, message=message, remedy=remedy, line=line, written=self.spelled(path)))

    @property
    def _origins(self) -> Origins:
        return Origins(file=str(self.path), lines=self.lines)
