"""What the workers are told: the plan of a step, with the features that the strip in force leaves in it.

The strip is `core.strip`'s; here stands only when it is asked. `"admission"` strips what is covered when a request is sent;
`"deferred"` sends a payload with the step that encodes it. A v1-style worker keeps what it got at the first admission: when the
request resumes it gets the missing fields, always under `"resend"`, under `"admission"` as the rule `strip.resumed` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from epdsim.core.ec.connector import NOTHING_TO_DO
from epdsim.core.items import MediaFeature
from epdsim.core.plan import NO_UPDATES, CachedRequestData, NewRequestData, StepPlan
from epdsim.core.rules import Rule
from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.sessions import BROADCAST
from epdsim.core.scheduler.state import RequestState
from epdsim.core.strip import RESUMED, UNCOVERED, defer_payloads, late_payloads, resend_on_resume, strip_covered


def step_plan(engine: EngineState, draft: StepDraft) -> StepPlan:
    """The plan of a draft."""
    is_v2 = engine.config.model_runner == "v2"
    cached = draft.cached
    if engine.config.strip == "deferred" and draft.encoder_inputs:
        cached = [_with_payloads(engine, draft, row) for row in cached]
    if engine.transfers is not None and engine.transfers.rewound:
        cached = [_rewound(engine, engine.transfers.rewound, row) for row in cached]
    if draft.resumed and not is_v2:
        cached += [_resumed(engine, draft, state) for state, _ in draft.resumed]
    new = draft.admitted + draft.resumed if is_v2 else draft.admitted
    freed = engine.encoder_cache.take_freed()
    ec_step = NOTHING_TO_DO if engine.ec is None else engine.ec.take_step(freed)
    # In the order of the plan's fields: named arguments would cost as much again as the plan itself.
    return StepPlan(
        engine.step,
        draft.num_scheduled,
        draft.encoder_inputs,
        [_new(engine, draft, state, num_cached) for state, num_cached in new],
        cached,
        sorted(engine.preempted),
        sorted(engine.finished),
        freed,
        ec_step.loads,
        ec_step.saves,
        _samples(engine, draft),
        draft.num_drafts,
        draft.kv_loads,
        engine.transfers.sends if engine.transfers is not None else (),
    )


def _samples(engine: EngineState, draft: StepDraft) -> Sequence[str]:
    """Ids that the step yields a token of."""
    if not engine.config.mm_encoder_only:
        return draft.samples
    return list(draft.num_scheduled) if engine.behaviour.encoding_yields else []


def _new(engine: EngineState, draft: StepDraft, state: RequestState, num_cached: int) -> NewRequestData:
    num_computed = state.num_computed - draft.num_scheduled[state.request_id]
    num_known = engine.dialect[BROADCAST](state.num_told) if state.num_told else 0
    features = _admission_features(engine, draft, state, num_computed, num_known) if state.features else ()
    state.sent = [*state.sent[:num_known], *features] if num_known else features
    if state.updates is not None:
        state.num_told = len(state.features)
    return NewRequestData(
        state.request_id,
        num_computed,
        list(state.blocks),
        features,
        state.num_tokens if engine.config.model_runner == "v2" else state.num_prompt,
        num_cached,
        num_known,
        state.cross_blocks,
    )


def _admission_features(
    engine: EngineState, draft: StepDraft, state: RequestState, num_computed: int, num_known: int
) -> Sequence[MediaFeature]:
    config, features = engine.config, state.features[num_known:]
    if config.strip == "off":
        return features
    if config.strip == "deferred":
        scheduled = [index - num_known for index in draft.encoder_inputs.get(state.request_id, ())]
        return defer_payloads(
            features, scheduled, uses_mrope=config.uses_mrope, uses_xdrope=config.uses_xdrope, dialect=engine.dialect
        )
    return strip_covered(
        features, num_computed, uses_mrope=config.uses_mrope, uses_xdrope=config.uses_xdrope, dialect=engine.dialect
    )


def _resumed(engine: EngineState, draft: StepDraft, state: RequestState) -> CachedRequestData:
    num_computed = state.num_computed - draft.num_scheduled[state.request_id]
    row = CachedRequestData(state.request_id, num_computed, list(state.blocks), True, NO_UPDATES, state.cross_blocks)
    if state.updates is not None:
        state.num_told = len(state.features)
    if engine.config.strip == "deferred":
        return _with_payloads(engine, draft, row)
    if state.features and _resends(engine, RESUMED):
        missing = resend_on_resume(state.features, num_computed, state.sent, engine.dialect)
        return _updated(state, row, missing)
    return row


def _resends(engine: EngineState, rule: Rule[Callable[[], bool]]) -> bool:
    strip = engine.config.strip
    return strip == "resend" or (strip == "admission" and engine.dialect[rule]())


def _rewound(engine: EngineState, rewound: dict[str, None], row: CachedRequestData) -> CachedRequestData:
    """The row of a running request, with what it lacks if a failed load sent it back behind stripped items."""
    if row.request_id not in rewound:
        return row
    del rewound[row.request_id]
    if not _resends(engine, UNCOVERED):
        return row
    state = engine.requests[row.request_id]
    missing = resend_on_resume(state.features, row.num_computed_tokens, state.sent, engine.dialect)
    return _updated(state, row, missing)


def _with_payloads(engine: EngineState, draft: StepDraft, row: CachedRequestData) -> CachedRequestData:
    """The row of a known request with the payloads that its worker lacks for the items encoded in this step."""
    scheduled = draft.encoder_inputs.get(row.request_id)
    if not scheduled:
        return row
    state = engine.requests[row.request_id]
    return _updated(state, row, late_payloads(state.features, scheduled, state.sent))


def _updated(state: RequestState, row: CachedRequestData, missing: Mapping[int, MediaFeature]) -> CachedRequestData:
    if not missing:
        return row
    state.sent = [state.features[index] if index in missing else one for index, one in enumerate(state.sent)]
    return row._replace(mm_updates=missing)
