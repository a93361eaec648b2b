"""Hooks of MkDocs: the site shows the repository's own pages, and an API reference of the public
names.

`mkdocs.yml` names this file. Nothing of the program is imported: mkdocstrings reads the sources.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages outside `docs`, by their path in the repository, and where they are on the site."""
API = "api.md"
GROUPS = {
    "Scenarios": ("load", "horizontal", "vertical", "features", "methods"),
    "Before a run": ("check", "privacy"),
    "Runs": ("run", "resume", "trust_code", "Run", "Callback", "report", "export"),
    "Comparisons and searches": ("compare", "tune"),
    "Audits": ("audit",),
}
"""The public names as the reference orders them."""
RETURNED = (
    "raydpzv.config.scenario.VerticalScenario",
    "raydpzv.config.scenario.HorizontalScenario",
    "raydpzv.preflight.Checked",
    "raydpzv.report.privacy.ScenarioPrivacy",
    "raydpzv.compare.compare_methods.Compared",
    "raydpzv.search.run_tune.Search",
    "raydpzv.audit.findings.Finding",
)
"""What public functions return, beside the public classes."""
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside `docs`, each file that a page links to, and the API reference."""
    root = Path(config.config_file_path).parent
    texts = {file.src_uri: file.content_string for file in files if file.is_documentation_page()}
    texts |= {to: (root / page).read_text("utf-8") for page, to in PAGES.items()}
    texts |= {code_page(path): shown(root / path, path) for path in linked_code(texts, root)}
    texts[API] = reference((root / "raydpzv" / "__init__.py").read_text("utf-8"))
    for src_uri, text in texts.items():
        if files.get_file_from_path(src_uri) is None:
            files.append(File.generated(config, src_uri, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has their files, and let Markdown inside folds be read as
    such.
    """
    markdown = markdown.replace("<details>", '<details markdown="1">')
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        to = site_uri(repository_path(here, link[2]))
        if files.get_file_from_path(to) is None:
            return link[0]
        return link[1] + posixpath.relpath(to, posixpath.dirname(here) or ".") + link[3]

    return LINK.sub(moved, markdown)


def repository_path(src_uri: str, link: str) -> str:
    """Return the path in the repository to which a page of the site links."""
    home = {to: page for page, to in PAGES.items()}.get(src_uri, f"docs/{src_uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(home), link))


def site_uri(path: str) -> str:
    """Return where the site has a file of the repository."""
    return PAGES.get(path) or (
        path.removeprefix("docs/") if path.startswith("docs/") else code_page(path)
    )


def code_page(path: str) -> str:
    """Return the page that shows a file of code."""
    return f"code/{path}.md"


def linked_code(texts: dict[str, str], root: Path) -> set[str]:
    """Return the files outside `docs` that pages link to, as paths in the repository."""
    links = {
        repository_path(uri, link[1]) for uri, text in texts.items() for link in LINK.findall(text)
    }
    return {
        path
        for path in links - set(PAGES)
        if not path.startswith("docs/") and "://" not in path and (root / path).is_file()
    }


def shown(file: Path, path: str) -> str:
    """Return a page with a file's text."""
    language = {".py": "python", ".js": "js", ".ipynb": "json"}.get(file.suffix, "text")
    return f"# {path}\n\n~~~~{language}\n{file.read_text('utf-8')}\n~~~~\n"


def reference(source: str) -> str:
    """Return the API page; source: that of the package's `__init__`. Raises KeyError if a public
    name has no group.
    """
    home = {
        alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("raydpzv.")
        for alias in node.names
    } | {"methods": "raydpzv.methods._Methods.__call__"}
    public = {name for name in public_names(source) if not name.startswith("__")}
    if left := public ^ {name for names in GROUPS.values() for name in names}:
        raise KeyError(
            f"GROUPS in docs/site_hooks.py and raydpzv.__all__ differ in {', '.join(sorted(left))}"
        )
    lines = [
        "# Python API",
        "",
        "`import raydpzv` gives these names. The docstrings are the program's own.",
    ]
    for group, names in GROUPS.items():
        lines += ["", f"## {group}"]
        for name in names:
            lines += documented(home[name], f"raydpzv.{name}")
    lines += ["", "## What they return"]
    for path in RETURNED:
        lines += documented(path, path.rpartition(".")[2])
    return "\n".join(lines) + "\n"


def documented(path: str, heading: str) -> list[str]:
    """Return the lines by which mkdocstrings writes an object's signature and docstring under this
    heading.
    """
    label = heading.rpartition(".")[2]
    return [
        "",
        f"::: {path}",
        "    options:",
        f"        heading: {heading}",
        f"        toc_label: {label}",
    ]


def public_names(source: str) -> list[str]:
    """Return `__all__` of a module's source."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise KeyError("__all__")
