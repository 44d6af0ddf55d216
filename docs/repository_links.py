# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hook of mkdocs: links to files of the repository outside of ``docs/`` become addresses of the repository.

Pages link to such files relatively, so that the links also work in a clone and where the repository is hosted. The address is
``project.urls.Repository`` of ``pyproject.toml``.
"""

import os.path
import re
from pathlib import Path

import tomllib

TOP = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")


def on_config(config):
    """Set the address of the repository that the site shows."""
    config.repo_url = PROJECT["urls"]["Repository"]
    config.repo_name = config.repo_url.partition("://")[2].partition("/")[2]
    config.site_description = PROJECT["description"]
    return config


def rewrite(markdown: str, folder: str) -> str:
    """Return a page with its links to files outside of ``docs/`` rewritten.

    Args:
        markdown: Text of the page.
        folder: Folder of the page, relative to the repository.
    """

    def replace(match):
        path = os.path.normpath(os.path.join(folder, match[2]))
        if path == "docs" or path.startswith("docs/"):
            return match[0]
        kind = "tree" if (TOP / path).is_dir() else "blob"
        return f"{match[1]}{PROJECT['urls']['Repository']}/{kind}/main/{path}{match[3] or ''}{match[4]}"

    return LINK.sub(replace, markdown)


def on_page_markdown(markdown, page, **_):
    """Rewrite the links of one page."""
    return rewrite(markdown, os.path.join("docs", os.path.dirname(page.file.src_uri)))
