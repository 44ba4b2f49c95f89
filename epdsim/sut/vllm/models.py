"""Model modules of the installed release, imported without what they need for pixels."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def model_module(name: str) -> ModuleType:
    """A module of `vllm.model_executor.models`; raises whatever its import raises."""
    with warnings.catch_warnings(), _image_library():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"vllm.model_executor.models.{name}")


class _Anything(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def _image_library() -> Iterator[None]:
    """Something in the place of torchvision while models are imported, where it is absent: nothing asked of them touches it."""
    if sys.modules.get("torchvision", False) is not None and importlib.util.find_spec("torchvision") is not None:
        yield
        return
    before = {name: sys.modules.get(name) for name in _IMAGE_MODULES if name in sys.modules}
    for name in _IMAGE_MODULES:
        module = sys.modules[name] = _Anything(name)
        module.__path__ = []
    try:
        yield
    finally:
        for name in _IMAGE_MODULES:
            del sys.modules[name]
        sys.modules.update(before)  # type: ignore[arg-type]


_IMAGE_MODULES = (
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)
