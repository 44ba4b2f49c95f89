"""What streaming sessions hold in the installed release's scheduler."""

from __future__ import annotations

from typing import Any

from epdsim.events import SessionItem, SessionSeen
from epdsim.sut.vllm.release import load


class VllmSessions:
    """The release's (`VllmEngine`)."""

    def num_prompt(self, engine: Any, request_id: str) -> int:
        """Tokens of its prompt."""
        known = engine.scheduler.requests.get(request_id)
        return 0 if known is None else known.num_prompt_tokens

    def seen(self, engine: Any, request_id: str, number: int, instance: str) -> SessionSeen:
        """What it holds, and beside it the keys of a new request with the same tokens and media."""
        release, known = load(), engine.scheduler.requests[request_id]
        tokens = list(known.all_token_ids)
        size = engine.scheduler.block_size
        whole = release.Request(
            request_id=request_id,
            prompt_token_ids=tokens,
            sampling_params=release.SamplingParams(max_tokens=1, ignore_eos=True),
            pooling_params=None,
            mm_features=list(known.mm_features),
            block_hasher=release.get_request_block_hasher(size, release.sha256),
            cache_salt=known.cache_salt,
            lora_request=known.lora_request,
        )
        items = [
            SessionItem(one.identifier, one.mm_position.offset, one.mm_position.length) for one in known.mm_features
        ]
        keys, whole_keys = ([bytes(key).hex()[:16] for key in one.block_hashes] for one in (known, whole))
        return SessionSeen(number, instance, request_id, tokens, items, keys, whole_keys)
