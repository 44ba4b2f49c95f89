"""The vLLM that is installed: imported when first asked for, whole, and quietly.

Any release from 0.25 to 0.33 does. The import takes 10 to 60 seconds and happens once in a process.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from epdsim.core.errors import InputError

_NAMES = {
    "vllm.config": (
        "CacheConfig",
        "ObservabilityConfig",
        "ParallelConfig",
        "SchedulerConfig",
        "SpeculativeConfig",
        "VllmConfig",
    ),
    "vllm.distributed.ec_transfer.ec_connector.base": ("ECConnectorRole",),
    "vllm.distributed.kv_transfer.kv_connector.v1.base": ("KVConnectorBase_V1", "KVConnectorMetadata"),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.multimodal.inputs": (
        "MultiModalBatchedField",
        "MultiModalFeatureSpec",
        "MultiModalFieldElem",
        "MultiModalKwargsItem",
        "PlaceholderRange",
    ),
    "vllm.sampling_params": ("SamplingParams",),
    "vllm.utils.hashing": ("sha256",),
    "vllm.v1.core.kv_cache_utils": ("get_request_block_hasher", "init_none_hash"),
    "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
    "vllm.v1.core.sched.interface": ("PauseState",),
    "vllm.v1.core.sched.scheduler": ("Scheduler",),
    "vllm.v1.kv_cache_interface": ("CrossAttentionSpec", "FullAttentionSpec", "KVCacheConfig", "KVCacheGroupSpec"),
    "vllm.v1.outputs": (
        "DraftTokenIds",
        "ECConnectorOutput",
        "KVConnectorOutput",
        "ModelRunnerOutput",
        "make_empty_encoder_model_runner_output",
    ),
    "vllm.v1.request": ("Request", "RequestStatus"),
}

_MEDIA_LIBRARIES = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM imports for media, which the scheduler never touches."""


def is_installed() -> bool:
    """Whether some vLLM can be found, without importing it."""
    return importlib.util.find_spec("vllm") is not None


@cache
def load() -> Any:
    """Import the installed release.

    Returns:
        A namespace of the classes that the adapter uses, under their own names, `torch`, and `version`, for example `"0.32.0"`.

    Raises:
        InputError: There is none, or it cannot be imported.
    """
    if not is_installed():
        raise InputError("vllm", "it is not installed in this environment", "install it with make vllm")
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its logger sets its own level when it is made
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    release = SimpleNamespace()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _hide_broken(_MEDIA_LIBRARIES)
            # vLLM's modules depend on the order in which its own scheduler brings them in.
            for module, names in [("vllm.v1.core.sched.scheduler", ("Scheduler",)), *_NAMES.items()]:
                imported = importlib.import_module(module)
                for name in names:
                    setattr(release, name, getattr(imported, name))
            release.torch = importlib.import_module("torch")
            release.version = _version(importlib.import_module("vllm").__version__)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise InputError("vllm", f"it cannot be imported ({error})", "install 0.32 with make vllm") from error
    release.init_none_hash(release.sha256)
    return release


def load_with(names: Mapping[str, Sequence[str]]) -> Any:
    """What `load` gives, and more names of the release by module.

    Raises:
        InputError: The release cannot be imported, or has no such names.
    """
    release = SimpleNamespace(**vars(load()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module, wanted in names.items():
                imported = importlib.import_module(module)
                for name in wanted:
                    setattr(release, name, getattr(imported, name))
    except (ImportError, AttributeError) as error:
        raise InputError(f"vllm {release.version}", f"it lacks what is compared ({error})", "install 0.32") from error
    return release


def _version(text: str) -> str:
    """The release without build marks: `"0.32.0"` of `"0.32.0+cpu"`."""
    matched = re.match(r"\d+\.\d+(\.\d+)?", text)
    return matched[0] if matched else text


def _hide_broken(names: tuple[str, ...]) -> None:
    """Make libraries that are installed but cannot be imported look absent: CUDA builds beside a CPU torch."""
    for name in names:
        if name in sys.modules or importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except (ImportError, OSError, RuntimeError):
            sys.modules[name] = None  # type: ignore[assignment]
