"""By what the installed release knows media and KV blocks: its media hasher, its block hashes, its events of stored blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature
from epdsim.core.legs import decode_leg, features_body
from epdsim.core.media_hash import RawItem
from epdsim.core.prompt import TokenPrompt
from epdsim.core.slots import tables_of
from epdsim.sut.identity_cases import KeyedRequest
from epdsim.sut.probe_identity import ComponentKeys
from epdsim.sut.vllm.protocol import VllmProtocol, vllm_protocol
from epdsim.sut.vllm.release import load_with
from epdsim.wire import encode_blob

_NAMES = {
    "vllm.multimodal.processing.inputs": ("ProcessorInputs",),
    "vllm.v1.core.block_pool": ("BlockPool",),
    "vllm.v1.core.kv_cache_utils": ("get_request_block_hasher",),
}
_MODEL, _ALGORITHM = "model", "sha256"


def vllm_identity() -> VllmIdentity | None:
    """The installed release's; None when it lacks what is asked (before 0.25) or the protocol of legs (before 0.30)."""
    protocol = vllm_protocol()
    try:
        release = load_with(_NAMES)
    except InputError:
        return None
    return None if protocol is None else VllmIdentity(release, protocol)


class _Items(list[Any]):
    """Items of one modality, as the release's processor holds them."""

    def get_all_items_for_hash(self) -> list[Any]:
        """All of them."""
        return list(self)


class VllmIdentity:
    """The release's hashes and keys.

    Args:
        release: Its classes.
        protocol: Brings items into its form.
    """

    def __init__(self, release: Any, protocol: VllmProtocol) -> None:
        self._release, self._protocol = release, protocol

    def media_hash(self, item: RawItem, options: Mapping[str, Any]) -> str:
        """The hash of an item, as its processor asks for it."""
        inputs = self._release.ProcessorInputs(
            prompt=[],
            mm_data_items={"image": _Items([self._raw(item)])},
            mm_uuid_items=None if item.given_id is None else {"image": [item.given_id]},
            hf_processor_mm_kwargs=dict(options),
        )
        ask = inputs.get_mm_hashes
        arguments = (_MODEL, _ALGORITHM)[: len(signature(ask).parameters)]
        return ask(*arguments)["image"][0]

    def _raw(self, item: RawItem) -> Any:
        if not item.mode:
            numpy = import_module("numpy")
            return numpy.frombuffer(item.data, item.dtype).reshape(item.shape)
        image = import_module("PIL.Image")
        rows, columns = item.shape
        made = image.frombytes(item.mode, (columns, rows), item.data)
        if item.palette:
            made.putpalette(item.palette)
        return made

    def block_keys(self, requests: Sequence[KeyedRequest], block_size: int) -> Sequence[ComponentKeys]:
        """Of the engine, the decode engine, a next turn, and an index that keys what the engine publishes."""
        engine: list[list[str]] = []
        decode: list[list[str]] = []
        turn: list[list[str]] = []
        index: list[list[str]] = []
        for place, one in enumerate(requests):
            name, whole = f"r{place}", [*one.tokens, *one.outputs]
            grown = self._request(name, one, one.tokens, one.features(), block_size)
            for token in one.outputs:
                grown.append_output_token_ids(token)
            engine.append(_hashes(grown))
            index.append(self._published(grown, block_size))
            turn.append(_hashes(self._request(name, one, whole, one.features(), block_size)))
            decode.append(_hashes(self._request(name, one, whole, self._decoded(one), block_size)))
        return [
            ComponentKeys("engine", "engine", engine),
            ComponentKeys("decode leg", "engine", decode),
            ComponentKeys("next turn", "engine", turn),
            ComponentKeys("index", "router", index),
        ]

    def _decoded(self, one: KeyedRequest) -> Sequence[MediaFeature]:
        """The items that a decode engine makes of the body of its leg."""
        prompt = TokenPrompt(one.tokens)
        leg = decode_leg("r", prompt, tables_of(one.features()), kv_transfer_params=None)
        if leg.tables is None:
            return ()
        return self._protocol.merge(features_body(leg.tables.convert(lambda item, _: encode_blob(item))))

    def _request(
        self, name: str, one: KeyedRequest, tokens: Sequence[int], features: Sequence[MediaFeature], block_size: int
    ) -> Any:
        release = self._release
        adapter = one.adapter
        return release.Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=release.SamplingParams(max_tokens=1 + len(one.outputs), ignore_eos=True),
            pooling_params=None,
            mm_features=[self._protocol.feature(feature) for feature in features],
            block_hasher=release.get_request_block_hasher(block_size, release.sha256),
            cache_salt=one.cache_salt,
            lora_request=adapter and release.LoRARequest(adapter, 1 + len(one.adapter_path), one.adapter_path),
        )

    def _published(self, request: Any, block_size: int) -> list[str]:
        """Keys of an index that has read what the release's block pool tells of a request's full blocks."""
        count = len(request.block_hashes)
        if not count:
            return []
        pool = self._release.BlockPool(
            num_gpu_blocks=count + 1, enable_caching=True, hash_block_size=block_size, enable_kv_cache_events=True
        )
        pool.cache_full_blocks(
            request=request,
            blocks=pool.get_new_blocks(count),
            num_cached_blocks=0,
            num_full_blocks=count,
            block_size=block_size,
            kv_cache_group_id=0,
        )
        keys: list[str] = []
        for event in pool.take_events():
            extras = event.extra_keys or [None] * len(event.block_hashes)
            for place, extra in enumerate(extras):
                tokens = list(event.token_ids[place * block_size : (place + 1) * block_size])
                keys.append(repr((keys[-1:], tokens, extra, event.lora_name)))
        return keys


def _hashes(request: Any) -> list[str]:
    return [bytes(one).hex() for one in request.block_hashes]
