"""Hooks of mkdocs, which add pages from outside `docs/`, the reference of the API, and the pages as plain text.

Files of the repository's root, such as README, become pages with rewritten links, and README's table of tasks becomes
cards. Each module of the reference becomes a page with its docstrings. A public name without a docstring fails the
build. `llms.txt` lists the pages for language models, and `llms-full.txt` holds their text: https://llmstxt.org.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "LICENSE": "license.md",
}
"""The page of each file of the repository's root that the site includes."""

_PACKAGES = {"harvest_lib", "dagster_harvest"}
_LINK = re.compile(r"(?<=\]\()(?!\w+://|#)([^)#\s]+)")
_IMAGE = re.compile(r'(?P<attribute>\bsrc(?:set)?=")docs/')
_TASKS = re.compile(r"^\| task \| pages \|\n\|[ |-]+\|\n(?P<rows>(?:\|.*\|\n)+)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions in the navigation."""
    names = sorted(path.name for path in (Path(config.docs_dir) / "decisions").glob("*.md"))
    decisions = [f"decisions/{name}" for name in sorted(names, key=lambda name: (name != "README.md", name))]
    for section in config.nav or []:
        for entry in section.get("Project", []):
            if isinstance(entry, dict) and "Decisions" in entry:
                entry["Decisions"] = decisions
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of root files and of the API reference, which are not in `docs/`."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        is_plain = page == "license.md"
        content = f"# License\n\n```\n{text}```\n" if is_plain else _on_the_site(text)
        files.append(File.generated(config, page, content=content))
    files.append(File.generated(config, "site.css", content=Path(__file__).with_name("site.css").read_text("utf-8")))
    for page in _listed(config.nav or []):
        if page.startswith("api/"):
            module = page.removeprefix("api/").removesuffix(".md")
            files.append(File.generated(config, page, content=_reference(module)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to root files, such as README, into links to their pages."""
    del config, files
    up = "../" * page.file.src_uri.count("/")
    if page.file.generated_by is not None:
        return markdown
    return _LINK.sub(lambda link: _from_docs(link[1], up), markdown)


def on_env(env: Any, *, config: MkDocsConfig, files: Files) -> Any:
    """Add `llms.txt` and `llms-full.txt`, once each page has its title and its text."""
    listed, full = f"# {config.site_name}\n\n> {config.site_description}\n", ""
    for section, names in itertools.groupby(_sections(config.nav), key=lambda each: each[0]):
        listed += f"\n## {section}\n\n"
        for _, name in names:
            file = files.get_file_from_path(name)
            if file is None or (page := file.page) is None:
                continue  # the strict build reports it
            listed += f"- [{page.title}]({page.url})\n"
            if not name.startswith("api/"):
                full += f"<!-- {page.url} -->\n\n{(page.markdown or '').strip()}\n\n"
    files.append(File.generated(config, "llms.txt", content=listed))
    files.append(File.generated(config, "llms-full.txt", content=full))
    return env


def _on_the_site(text: str) -> str:
    """Return the text of a root file with the links, images and cards that its page on the site has."""
    text = _IMAGE.sub(r"\g<attribute>", _LINK.sub(lambda link: _from_root(link[1]), text))
    return _TASKS.sub(lambda table: _cards(table["rows"]), text)


def _cards(rows: str) -> str:
    """Return the rows of README's table of tasks as Material's grid of cards."""
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]
    cards = "".join(f"- **{task.capitalize()}**\n\n    {pages}\n\n" for task, pages in cells)
    return f'<div class="grid cards" markdown>\n\n{cards}</div>\n'


def _from_root(link: str) -> str:
    return PAGES.get(link, link.removeprefix("docs/"))


def _from_docs(link: str, up: str) -> str:
    outside = link.removeprefix(f"{up}../")
    return up + PAGES[outside] if outside != link and outside in PAGES else link


def _sections(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield the pages of the navigation in its order, each with its uppermost section."""
    for entry in nav or []:
        for section, pages in entry.items():
            yield from ((section, page) for page in _listed(pages))


def _listed(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else [nav]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _listed(entry)


def _reference(module: str, root: Path = ROOT) -> str:
    """Return the reference page of a module. Raises PluginError if a public name has no docstring."""
    found = griffe.load(module, search_paths=[str(root)], resolve_aliases=True, resolve_external=False)
    documented = _of_protocols(found)
    exports = sorted(map(str, found.exports or found.members))
    names = [name for name in exports if not name.startswith("_") and _is_ours(found[name])]
    undocumented = [
        f"{module}.{name}{'.' if method else ''}{method}"
        for name in names
        for method in _undocumented(found[name])
        if method not in documented
    ]
    if undocumented:
        raise PluginError(f"public names without a docstring: {', '.join(undocumented)}")
    members = "".join(f"        - {name}\n" for name in names)
    return f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n      members:\n{members}"


def _is_ours(member: Any) -> bool:
    """Return True if a member is a class or a function of this project, or an alias of such a class or function."""
    try:
        target = member.final_target if member.is_alias else member
    except griffe.AliasResolutionError:
        return False
    return target.kind.value in {"class", "function"} and (
        not member.is_alias or target.canonical_path.split(".")[0] in _PACKAGES
    )


def _of_protocols(module: Any) -> set[str]:
    """Return the names of methods that have a docstring in a protocol of the module. Methods with such a name need no
    docstring of their own."""
    targets = [each.final_target if each.is_alias else each for each in module.members.values() if _is_ours(each)]
    protocols = [
        each
        for each in targets
        if any(str(base).partition("[")[0] == "Protocol" for base in getattr(each, "bases", ()))
    ]
    return {name for each in protocols for name, member in each.members.items() if member.has_docstring}


def _undocumented(member: Any) -> Iterator[str]:
    """Yield the names of the public methods of a class that have no docstring and inherit none. Yield an empty name
    first if the class or function itself has no docstring."""
    target = member.final_target if member.is_alias else member
    if not target.has_docstring:
        yield ""
    for name, each in target.members.items() if target.kind.value == "class" else ():
        if name.startswith("_") or each.is_alias or each.kind.value != "function" or each.has_docstring:
            continue
        if not any(name in base.members and base.members[name].has_docstring for base in target.mro()):
            yield name
