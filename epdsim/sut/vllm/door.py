"""What the installed release's front end lets in: its own input processor's checks, without a tokenizer."""

from __future__ import annotations

import importlib
from typing import Any

from epdsim.sut.schedule_records import RecordedConfig, RecordedRequest
from epdsim.sut.vllm.settings import StandIn


class VllmDoor:
    """The checks of the release's input processor.

    Args:
        release: Of `sut.vllm.release.load`.
        config: Settings of the engine behind it.
    """

    def __init__(self, release: Any, config: RecordedConfig) -> None:
        self._release = release
        # What its server answers as a client's error.
        self._refusals = ValueError, importlib.import_module("vllm.exceptions").VLLMValidationError
        processor = importlib.import_module("vllm.v1.engine.input_processor").InputProcessor
        self._checks: Any = object.__new__(processor)
        self._checks.model_config = StandIn(max_model_len=config.max_model_len, runner_type="generate")
        self._checks.supports_mm_inputs = True
        self._checks.skip_prompt_length_check = False
        self._checks.mm_encoder_cache_size = max(config.encoder_cache_size, config.max_tokens_per_mm_item)
        self._checks.renderer = StandIn(validate_token_ids=lambda _: None)

    def refusal(self, request: RecordedRequest) -> str:
        """Why a request is refused; empty when it is not. Whatever else is raised is a failure of the release."""
        release, places = self._release, {}
        for item in request.mm_features:
            mask = None if item.is_embed is None else release.torch.tensor(item.is_embed)
            place = release.PlaceholderRange(offset=item.offset, length=item.length, is_embed=mask)
            places.setdefault(item.modality, []).append(place)
        prompt = {"type": "multimodal" if places else "token", "prompt_token_ids": request.prompt_token_ids}
        try:
            self._checks._validate_model_inputs(None, prompt | {"mm_placeholders": places})  # noqa: SLF001 - no public way
        except self._refusals as error:
            return str(error)
        return ""
