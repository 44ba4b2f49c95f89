"""FWD-EQ of costs: decode steps timed together are to the bit what they are one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.cost import LinearLm
from epdsim.cost.lm import RooflineLm, StepLoad, decode_stepper


class Odd:
    """A model that times single steps only."""

    def step_ms(self, load: StepLoad) -> float:
        return 0.1 * load.decode_requests + (load.decode_context_tokens % 7) ** 0.5


LINEAR = LinearLm(fixed_ms=3.3, prefill_token_ms=0.1, pair_ms=0.01, decode_request_ms=0.07, context_token_ms=0.0013)
MODELS = {
    "linear": LINEAR,
    "dense": RooflineLm("qwen3-vl-8b", "h100"),
    "sliding window": RooflineLm("gemma-4-31b", "h100", 4),
    "experts": RooflineLm("qwen3-vl-30b-a3b", "h100"),
    "single steps only": Odd(),
}


@pytest.mark.parametrize("name", MODELS)
@given(requests=st.integers(1, 300), context=st.integers(1, 100_000), num_steps=st.integers(1, 70))
def test_steps_timed_together_equal_steps_timed_alone(name, requests, context, num_steps) -> None:
    lm = MODELS[name]
    loads = [StepLoad(0, 0, requests, context + index * requests) for index in range(num_steps)]
    assert decode_stepper(lm)(requests, context, num_steps) == [lm.step_ms(load) for load in loads]


def test_the_models_take_both_ways() -> None:
    assert MODELS["sliding window"]._window
    assert MODELS["experts"]._expert_ms
    assert not hasattr(MODELS["single steps only"], "decode_steps_ms")
