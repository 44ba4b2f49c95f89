"""Sphinx configuration: MyST pages, furo, and reference pages made from the code."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from epdsim import __version__

project = "epdsim"
author = "The epdsim authors"
copyright = "The epdsim authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated_reference"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"epdsim {__version__}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings quote names in single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
