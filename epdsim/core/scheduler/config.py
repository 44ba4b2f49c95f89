"""Settings of an engine's scheduler, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from epdsim.core.drafters import METHODS, PARALLEL_METHODS, Drafter, drafter_of
from epdsim.core.errors import InputError

_CHOICES = {
    "policy": ("fcfs", "priority"),
    "model_runner": ("v1", "v2"),
    "ec_role": ("none", "producer", "consumer", "both"),
    "kv_role": ("none", "producer", "consumer", "both"),
    "kv_load_failure_policy": ("recompute", "fail"),
    "strip": ("off", "admission", "deferred", "resend"),
    "speculative_method": METHODS,
}
MAX_GPU_BLOCKS = 10_000_000
"""Blocks that an engine keeps books of at most: 160 million tokens in blocks of 16."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of one engine's scheduler.

    Attributes:
        block_size: Tokens of a KV block.
        num_gpu_blocks: KV blocks of the pool; block 0 is the null block, which nobody gets.
        max_num_batched_tokens: Tokens that a step may compute.
        max_num_seqs: Requests that may run at once.
        max_model_len: Tokens that prompt and output of one request may have.
        encoder_cache_size: Embeddings that the encoder cache holds; at least the largest item.
        max_num_encoder_input_tokens: Embeddings that a step may compute in the encoder; at least the largest item.
        enable_prefix_caching: Whether KV blocks of finished requests are found again.
        enable_chunked_prefill: Whether an admission may compute a part of its prompt.
        policy: `"fcfs"` or `"priority"`.
        async_scheduling: Whether a step is scheduled before the output of the one before is known.
        model_runner: `"v1"` (resumed requests are told as differences) or `"v2"` (as new ones).
        uses_mrope: Positions are read from keep-on-CPU fields (M-RoPE).
        uses_xdrope: The same for XD-RoPE.
        disable_chunked_mm_input: No step ends inside a media item.
        scheduler_reserve_full_isl: Admit only when all known tokens of the request fit in the free blocks.
        long_prefill_token_threshold: Tokens that one request may get in a step while others are alive; 0 for no limit.
        ec_role: The engine's side of the EC connector: `"none"`, `"producer"`, `"consumer"` or `"both"`.
        is_encoder_decoder: The model reads its items through cross attention (Whisper): all of them are encoded with the first
            step, prompts are computed at once, and there is no prefix cache.
        mm_encoder_only: The engine runs the media encoder only: no KV cache, no output tokens; a request ends with its prompt.
        kv_role: The engine's side of the KV connector: `"none"`, `"producer"`, `"consumer"` or `"both"`.
        kv_load_failure_policy: What becomes of a request whose KV cache could not be loaded: `"recompute"` or `"fail"`.
        strip: How payloads of prefix-covered items are left out of the broadcast: `"off"`, `"admission"`, `"deferred"` or
            `"resend"` (see `core.strip`); under `"admission"` a resume is as the rule `strip.resumed` of the dialect has it.
        speculative_method: How tokens are drafted (see `core.drafters`); `"none"` for no speculative decoding.
        num_speculative_tokens: Tokens drafted for a request in a step, at most.
        parallel_drafting: Whether they are drafted in one pass.
        disable_eagle_block_drop: Keep the last block of a prefix hit under drafters that read ahead.
        mamba_block_aligned_split: Chunks of a prompt end at block boundaries, where a hybrid model's state is cached (vLLM's
            `mamba_cache_mode` `"align"`); of such a mode this is all that is modelled.
    """

    block_size: int = 16
    num_gpu_blocks: int = 1024
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int = 131072
    encoder_cache_size: int = 8192
    max_num_encoder_input_tokens: int = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    policy: str = "fcfs"
    async_scheduling: bool = False
    model_runner: str = "v1"
    uses_mrope: bool = False
    uses_xdrope: bool = False
    disable_chunked_mm_input: bool = False
    scheduler_reserve_full_isl: bool = True
    long_prefill_token_threshold: int = 0
    ec_role: str = "none"
    is_encoder_decoder: bool = False
    mm_encoder_only: bool = False
    kv_role: str = "none"
    kv_load_failure_policy: str = "fail"
    strip: str = "admission"
    speculative_method: str = "none"
    num_speculative_tokens: int = 0
    parallel_drafting: bool = False
    disable_eagle_block_drop: bool = False
    mamba_block_aligned_split: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InputError(f"{name} {value!r}", f"it is one of {', '.join(choices)}")
        for name, least in (
            ("block_size", 1),
            ("num_gpu_blocks", 2),
            ("max_num_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("max_model_len", 1),
        ):
            if getattr(self, name) < least:
                raise InputError(f"{name} {getattr(self, name)}", f"it must be at least {least}")
        if self.num_gpu_blocks > MAX_GPU_BLOCKS:
            rule = f"it must be at most {MAX_GPU_BLOCKS:,}, of which a record is kept each"
            raise InputError(f"num_gpu_blocks {self.num_gpu_blocks}", rule)
        for name in ("encoder_cache_size", "max_num_encoder_input_tokens", "long_prefill_token_threshold"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} {getattr(self, name)}", "it must not be negative")
        self._check_mode()
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens {self.max_num_batched_tokens}",
                f"it is less than max_num_seqs {self.max_num_seqs}, so running requests could not all advance",
                "raise it or lower max_num_seqs",
            )
        self._check_drafting()

    def _check_mode(self) -> None:
        if self.mm_encoder_only and self.enable_prefix_caching:
            raise InputError("enable_prefix_caching", "an engine that only encodes has no KV cache", "switch it off")
        if not self.is_encoder_decoder:
            return
        switched_on = {
            "enable_prefix_caching": self.enable_prefix_caching,
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
            "mm_encoder_only": self.mm_encoder_only,
        }
        for name in (name for name, value in switched_on.items() if value):
            raise InputError(
                name, "an encoder-decoder model computes prompts at once and shares nothing", "switch it off"
            )
        if self.kv_role != "none":
            raise InputError(f"kv_role {self.kv_role!r}", "no KV connector serves encoder-decoder models", "use none")
        if self.ec_role != "none":
            raise InputError(
                f"ec_role {self.ec_role!r}", "embeddings of an encoder-decoder model are not cached", "use none"
            )

    @property
    def drafter(self) -> Drafter:
        """What the drafter asks of the scheduler."""
        return drafter_of(
            self.speculative_method,
            self.num_speculative_tokens,
            parallel=self.parallel_drafting,
            drops_block=not self.disable_eagle_block_drop,
        )

    def _check_drafting(self) -> None:
        method, num_drafts = self.speculative_method, self.num_speculative_tokens
        name = f"num_speculative_tokens {num_drafts}"
        if num_drafts < 0 or (num_drafts > 0) != (method != "none"):
            raise InputError(name, f"speculative_method is {method!r}", "give both or neither")
        if self.parallel_drafting and method not in PARALLEL_METHODS:
            raise InputError("parallel_drafting", f"only {' and '.join(PARALLEL_METHODS)} draft in one pass")
        if num_drafts and self.mm_encoder_only:
            raise InputError(name, "an engine that only encodes yields no tokens to draft", "switch one off")
        drafter = self.drafter
        if self.is_encoder_decoder and drafter.num_prefill_lookahead:
            rule = "no drafter that reads ahead serves an encoder-decoder model"
            raise InputError(f"speculative_method {method!r}", rule, "use ngram or draft_model")
        if self.mamba_block_aligned_split and (self.is_encoder_decoder or self.mm_encoder_only):
            rule = "chunks at block boundaries are for models that only decode"
            raise InputError("mamba_block_aligned_split", rule, "switch it off")
        room = self.max_num_batched_tokens - drafter.num_slots
        if num_drafts and room < 1 + num_drafts:
            rule = f"a step has room for {room} tokens of a request beside the drafter's own"
            raise InputError(name, rule, "raise max_num_batched_tokens")
        if 0 < self.long_prefill_token_threshold <= num_drafts:
            rule = (
                f"it must be more than num_speculative_tokens {num_drafts}, so that no draft counts as a long prefill"
            )
            raise InputError(f"long_prefill_token_threshold {self.long_prefill_token_threshold}", rule)
        if drafter.drops_block and self.enable_prefix_caching and self.block_size < drafter.num_prefill_lookahead:
            rule = f"the drafter reads {drafter.num_prefill_lookahead} tokens ahead, and a hit drops one block for that"
            raise InputError(f"block_size {self.block_size}", rule, "raise it")
