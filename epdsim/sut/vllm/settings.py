"""What the real scheduler reads of its settings, made of the release's own small config classes and of stand-ins for the rest.

`Scheduler` only reads attributes. A stand-in answers None for what it was not given, which switches the feature behind it off.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from epdsim.sut.schedule_records import RecordedConfig, RecordedWorkload

MODALITIES = ("audio", "image", "video")


class StandIn:
    """Attributes as given, None for all others."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def has_kv_connector(workload: RecordedWorkload) -> bool:
    """Whether the engine needs a KV connector."""
    return workload.config.kv_role is not None or any(request.num_remote_tokens for request in workload.requests)


def _kv_transfer_config(workload: RecordedWorkload) -> StandIn:
    role = workload.config.kv_role or "consumer"
    return StandIn(
        kv_connector="WorkloadConnector",
        kv_connector_module_path="epdsim.sut.vllm.kv_connector",
        is_kv_producer=role in {"producer", "both"},
        is_kv_consumer=role in {"consumer", "both"},
        kv_load_failure_policy=workload.config.kv_load_failure_policy or "fail",
    )


def engine_settings(release: Any, workload: RecordedWorkload) -> StandIn:
    """What stands for `VllmConfig`."""
    config = workload.config
    model = StandIn(
        uses_mrope=config.uses_mrope,
        is_encoder_decoder=config.is_encoder_decoder,
        max_model_len=config.max_model_len,
        runner_type="generate",
        is_diffusion=False,
        supports_multimodal_inputs=True,
        get_multimodal_config=lambda: StandIn(mm_processor_cache_gb=0, enable_mm_embeds=False),
    )
    settings = StandIn(
        model_config=model,
        scheduler_config=_scheduler_config(release, config),
        cache_config=_cache_config(release, config),
        kv_transfer_config=_kv_transfer_config(workload) if has_kv_connector(workload) else None,
        parallel_config=release.ParallelConfig(),
        observability_config=release.ObservabilityConfig(),
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        max_in_flight_tokens=4 * config.max_num_batched_tokens,
        max_concurrent_batches=2 if config.async_scheduling else 1,
        use_v2_model_runner=config.model_runner == "v2",
        is_mm_encoder_only=config.mm_encoder_only,
        is_encoder_only=config.mm_encoder_only,  # its name in 0.28
        aux_output_config=StandIn(enabled=False),
        ec_manager_config=StandIn(get_encoder_cache_manager_obj=lambda: None),
    )
    if config.speculative_method != "none":
        _draft(release, settings, config)
    return settings


def _draft(release: Any, settings: StandIn, config: RecordedConfig) -> None:
    """Switch speculative decoding on, with the figures that the release itself derives from the method."""
    drafter = object.__new__(release.SpeculativeConfig)
    drafter.__dict__.update(
        method=config.speculative_method,
        num_speculative_tokens=config.num_speculative_tokens,
        parallel_drafting=config.parallel_drafting,
        disable_eagle_block_drop=config.disable_eagle_block_drop,
        num_speculative_tokens_per_batch_size=None,
        draft_model_config=StandIn(hf_config=StandIn(num_nextn_predict_layers=config.num_speculative_tokens)),
    )
    vars(settings)["speculative_config"] = drafter
    for name in ("num_speculative_tokens", "num_lookahead_tokens", "num_prefill_lookahead_tokens"):
        vars(settings)[name] = getattr(release.VllmConfig, name).fget(settings)


def _scheduler_config(release: Any, config: RecordedConfig) -> Any:
    wanted = {
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
        "enable_chunked_prefill": config.enable_chunked_prefill,
        "policy": config.policy,
        "async_scheduling": config.async_scheduling,
        "disable_chunked_mm_input": config.disable_chunked_mm_input,
        "scheduler_reserve_full_isl": config.scheduler_reserve_full_isl,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "long_prefill_token_threshold_adaptive": False,
        "is_encoder_decoder": config.is_encoder_decoder,
        "watermark": 0.0,
    }
    known = signature(release.SchedulerConfig).parameters
    made = release.SchedulerConfig(**{name: value for name, value in wanted.items() if name in known})
    made.max_num_encoder_input_tokens = config.max_num_encoder_input_tokens
    made.encoder_cache_size = config.encoder_cache_size
    # Connectors that do not say that they support several KV groups want one.
    made.disable_hybrid_kv_cache_manager = True
    return made


def _cache_config(release: Any, config: RecordedConfig) -> Any:
    made = release.CacheConfig(block_size=config.block_size, enable_prefix_caching=config.enable_prefix_caching)
    made.num_gpu_blocks = config.num_gpu_blocks
    return made


def kv_cache_config(release: Any, config: RecordedConfig) -> Any:
    """One group of full attention, with cross attention a second one; none where no language model runs."""
    kinds = {"self": release.FullAttentionSpec, "cross": release.CrossAttentionSpec}
    groups = ["self", "cross"] if config.is_encoder_decoder else [] if config.mm_encoder_only else ["self"]
    shape = {"block_size": config.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": release.torch.float32}
    return release.KVCacheConfig(
        num_blocks=config.num_gpu_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[release.KVCacheGroupSpec([name], kinds[name](**shape)) for name in groups],
    )


def media_registry(settings: StandIn, config: RecordedConfig) -> StandIn:
    """What stands for the processor registry, of which the scheduler asks the size of the largest item."""
    modalities = MODALITIES[:1] if config.is_encoder_decoder else MODALITIES
    info = StandIn(
        supported_mm_limits=dict.fromkeys(modalities),
        allowed_mm_limits=dict.fromkeys(modalities, 999),
        ctx=StandIn(model_config=settings.model_config),
        get_mm_max_tokens_per_item=lambda *_, **__: dict.fromkeys(modalities, config.max_tokens_per_mm_item),
    )
    return StandIn(
        create_processor=lambda *_, **__: StandIn(info=info),
        # Asked up to 0.30, where the registry and not the model says so.
        supports_multimodal_inputs=lambda _: True,
        processor_only_cache_from_config=lambda _: None,
    )


def structured_output() -> StandIn:
    """What stands for the manager of grammars, of which there are none."""
    return StandIn(
        accept_tokens=lambda *_, **__: True,
        validate_tokens=lambda _, tokens: tokens,
        should_advance=lambda *_, **__: False,
        grammar_init=lambda *_, **__: None,
    )
