"""How Sphinx makes a site of these pages: ``scripts/docs``. A link that leads nowhere is an error.

The sources are the repository, so that links between pages are the same there and on the site.
"""

from importlib import metadata

project = "Stillframe"
author = "the authors of Stillframe"
release = metadata.version("stillframe")
extensions = ["myst_parser"]

root_doc = "docs/index"
include_patterns = ["docs/*.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "examples", "scripts"]

html_theme = "furo"
html_title = "Stillframe"
html_copy_source = False
html_extra_path = ["_site"]  # an index.html at the top that leads to docs/index.html

# Links to headings work as they do where the repository is shown: #when-the-supervisor-dies.
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # DuckDB's SQL is more than Pygments knows
