"""Settings of the documentation builder: `nox -s docs`. A warning is an error."""

from importlib import metadata

project = "nanofn"
author = "the nanofn authors"
project_copyright = author
version = release = metadata.version("nanofn")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
suppress_warnings = ["toc.empty_glob"]  # docs/kernels/ gains a page with each kernel
default_role = "literal"  # docstrings put names between single backquotes

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_custom_sections = ["Mutates", "Accuracy", "Source"]
napoleon_use_ivar = True

html_theme = "furo"
html_title = "nanofn"
html_show_sphinx = False
