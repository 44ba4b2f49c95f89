"""Bodies of requests without media are weighed by arithmetic; the plain way, by their JSON, is the oracle."""

from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.legs import json_bytes
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.fleet import composer
from epdsim.fleet.composer import body_bytes, decode_call, prefill_legs, text_decode_bytes, text_prefill_bytes
from epdsim.fleet.render import RenderedRequest
from epdsim.workload.request import WorkloadRequest

IDS = st.text(min_size=1, max_size=40) | st.sampled_from(["poisson-17", 'a"b\\c', "ü/\n", "🖼"])


@given(IDS.filter(lambda name: name.isprintable()), st.integers(1, 200_000), st.booleans())
def test_a_text_body_weighs_what_its_json_does(request_id: str, num_tokens: int, hands_over: bool) -> None:
    run = TokenRun(request_id, 0, num_tokens)
    rendered = RenderedRequest(WorkloadRequest(request_id, 0.0, (run,), 1), RunPrompt([run]), None, ())
    legs = prefill_legs(rendered, {}, hands_over=hands_over)
    assert {"none": text_prefill_bytes(request_id, num_tokens, hands_over=hands_over)} == {
        name: body_bytes(leg) for name, leg in legs.items()
    }
    num_blocks = -(-num_tokens // 16)
    assert text_decode_bytes(request_id, num_tokens, num_blocks) == body_bytes(decode_call(rendered, num_blocks))


whole = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | whole | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_texts_are_weighed_as_the_standard_library_writes_them(value) -> None:
    assert composer._json_bytes(value) == json_bytes(value)
