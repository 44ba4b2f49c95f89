"""Compiles what every step passes through, for whoever asks: `EPDSIM_COMPILE=1 pip install .`.

The sources are the same, type annotations and all: mypyc makes C of them. Without the variable, as without a C compiler, the
package is plain Python and does the same, only slower.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "core/caches/encoder_cache.py",
    "core/caches/encoder_decoder_cache.py",
    "core/kv/*.py",
    "core/plan.py",
    "core/prompt.py",
    "core/scheduler/*.py",
    "cost/link.py",
    "cost/lm.py",
    "cost/render.py",
    "fleet/*.py",
    "fleet/ec/*.py",
    "fleet/express/*.py",
    "fleet/orchestrators/*.py",
    "payload/message.py",
    "payload/packing.py",
    "report/books.py",
    "report/sink.py",
    "spec/*.py",
)
"""Below `epdsim`; a folder's `__init__.py` stays as it is."""
OPTIONS = ("--follow-imports=silent", "--ignore-missing-imports", "--disable-error-code=misc")
"""What the compiled modules import is looked at for types alone."""


class CompileHook(BuildHookInterface):
    """Adds extension modules to a wheel."""

    def dependencies(self) -> list[str]:
        """What the build needs beyond hatchling."""
        return ["mypy[mypyc]>=1.18", "setuptools>=80"] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what came of it to the builder.

        Args:
            version: `"standard"` or `"editable"`; sources that are worked on are never shadowed by what was compiled of them.
            build_data: Told of the files.
        """
        if not _is_wanted() or version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp())
        built = compile_package(Path(self.root), self._folder)
        build_data["force_include"] = {str(path): str(path.relative_to(self._folder)) for path in built}
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Leave nothing behind."""
        if _is_wanted() and version != "editable":
            shutil.rmtree(self._folder)


def _is_wanted() -> bool:
    return os.environ.get("EPDSIM_COMPILE", "0") not in ("", "0")


def compile_package(root: Path, folder: Path) -> list[Path]:
    """Compile a copy of the package.

    Args:
        root: Of the project.
        folder: Takes the copy.

    Returns:
        The extension modules, each in its place below `folder`.
    """
    from mypyc.build import mypycify  # noqa: PLC0415 - there only where it is wanted
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    shutil.copytree(root / "epdsim", folder / "epdsim", ignore=shutil.ignore_patterns("__pycache__"))
    with chdir(folder):
        # A file of C for each module: one for all takes gcc more than twice as long.
        modules = mypycify([*OPTIONS, *_files(COMPILED)], opt_level="2", debug_level="0", multi_file=True)
        command = build_ext(Distribution({"name": "epdsim", "packages": [], "ext_modules": modules}))
        command.inplace = True
        command.ensure_finalized()
        command.run()
        return [folder / path for path in sorted(Path().rglob("*.so")) if path.parts[0] != "build"]


def _files(patterns: tuple[str, ...]) -> list[str]:
    found = (path.as_posix() for pattern in patterns for path in Path("epdsim").glob(pattern))
    return sorted(path for path in found if not path.endswith("__init__.py"))
