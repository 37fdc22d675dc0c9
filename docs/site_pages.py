"""Hook of MkDocs: pages of the top folder, and the reference of the configuration with links."""

from __future__ import annotations

import pathlib
from typing import Any

from mkdocs.structure.files import File, Files

from estimator_det.config import reference

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages, with their links as seen from the folder `docs`."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for name_on_site, target in PAGES.items():
            text = text.replace(f"]({name_on_site}", f"]({target}")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "configuration.md", content=reference.page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links the fields of a configuration that a page names to the reference."""
    for name, target in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({target}")
    return markdown if page.file.src_uri == "configuration.md" else reference.with_links(markdown)
