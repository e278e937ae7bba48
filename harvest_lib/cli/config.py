"""`harvest config show | new`: the effective settings, and a commented file to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from harvest_lib.cli.options import ConfigFile, Json, chosen_file
from harvest_lib.cli.parsing import group
from harvest_lib.cli.terminal import json_text
from harvest_lib.cli.usage import Misuse
from harvest_lib.errors import ConfigError

app = group("config", "The configuration: show the effective settings, or write a file to begin with.")


@app.command()
def show(config: ConfigFile = None, as_json: Json = False) -> None:
    """Show each setting: its effective value, and whether the file, a variable or the default sets it. Connects to
    nothing.

    Secrets are hidden. A variable overrides the file.

    Examples:

      harvest config show -f harvest.yaml

      harvest config show --json | jq '.[] | select(.origin != "default")'
    """
    from harvest_lib.cli.tables import print_line, print_table, table_of
    from harvest_lib.config.effective import effective_settings

    file, reason = chosen_file(config)
    try:
        settings = effective_settings(file)
    except ConfigError as error:
        raise error.read_from(reason) from error
    if as_json:
        rows = [
            {"setting": each.setting, "value": each.value, "origin": each.origin, "file": each.file or None}
            | {"line": each.line, "variable": each.variable or None}
            for each in settings
        ]
        typer.echo(json_text(rows, indent=2))
        return
    print_line(reason)
    print_table(table_of([(each.setting, each.origin, _text(each.value)) for each in settings], boxed=False))


@app.command()
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("harvest.yaml"),
) -> None:
    """Write a commented configuration file to begin with. Refuses to overwrite a file.

    Examples:

      harvest config new

      harvest config new billing.yaml
    """
    from importlib.resources import files

    text = files("harvest_lib.config").joinpath("template.yaml").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise Misuse(f"{file} exists already", next_step="name another file, or remove it") from error
    except OSError as error:
        raise Misuse(f"{file} cannot be written: {error.strerror}", next_step="name another file") from error
    typer.echo(f"written: {file}; replace each <...> in it, then run `harvest check -f {file}`")


def _text(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json_text(value)
