"""Laws of workloads: what is written reads back, cuts are filters, order is a stable sort, media change no text."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.workload import MediaRef, OverlaySpec, TraceCut, WorkloadRequest, overlay_images, read_jsonl, write_jsonl
from epdsim.workload.leaving import ClientsSpec, with_clients
from epdsim.workload.media import split_at
from epdsim.workload.synthetic import PoissonSpec
from epdsim.workload.trace_files import in_order

names = st.text(max_size=6)
contents = st.recursive(
    names | st.integers() | st.tuples(st.just("mooncake"), st.integers(0, 5)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
lengths = st.integers(1, 1200) | st.sampled_from([511, 512, 513, 1024])
runs = st.builds(TokenRun, contents, st.sampled_from([0, 0, 1, 512]), lengths)
blocks = st.lists(st.integers(0, 9).map(lambda block: TokenRun(("mooncake", block), 0, 512)), min_size=1, max_size=4)
sides = st.integers(1, 4000)
media = st.one_of(
    st.builds(MediaRef, names, st.just("image"), sides, sides, file_bytes=st.integers(0, 10**9)),
    st.builds(MediaRef, names, st.just("video"), sides, sides, st.integers(1, 99), st.floats(0, 1e6)),
    st.builds(MediaRef, names, st.sampled_from(["image", "audio"]), num_tokens=st.integers(1, 9999)),
    st.builds(MediaRef, names, st.just("audio"), duration_s=st.floats(0.001, 1e6)),
)


@st.composite
def prompts(draw):
    """Any mix of runs and media, with whole Mooncake prompts and split runs among them."""
    kind = draw(st.sampled_from(["any", "blocks", "split"]))
    if kind == "any":
        return tuple(draw(st.lists(runs | media, min_size=1, max_size=6)))
    text = draw(blocks)
    total = sum(run.length for run in text)
    last = draw(st.integers(1, 512))
    text[-1] = TokenRun(text[-1].content, 0, last)
    total += last - 512
    return (
        tuple(text)
        if kind == "blocks"
        else split_at(text, draw(st.integers(0, total)), draw(st.lists(media, min_size=1, max_size=3)))
    )


@st.composite
def workloads(draw):
    """Requests by time with ids of their own; a hash of media is the same file wherever it comes."""
    arrivals = sorted(draw(st.lists(st.floats(0, 1e9), max_size=6)))
    files = {}
    return [
        WorkloadRequest(
            request_id=f"{draw(names)}{index}",
            arrival_ms=arrival_ms,
            parts=tuple(
                files.setdefault(part.content, part) if isinstance(part, MediaRef) else part for part in draw(prompts())
            ),
            output_tokens=draw(st.integers(1, 10**6)),
            session_id=draw(names),
            priority=draw(st.integers(-5, 5)),
            slo_class=draw(names),
        )
        for index, arrival_ms in enumerate(arrivals)
    ]


@given(workloads(), st.sampled_from(["w.jsonl", "w.jsonl.gz"]))
def test_what_is_written_reads_back(requests, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        assert write_jsonl(requests, path) == len(requests)
        if requests:
            assert list(read_jsonl(path)) == requests


def text_of(parts):
    return RunPrompt([part for part in parts if isinstance(part, TokenRun)]).runs


@given(st.lists(runs, max_size=5), st.data())
def test_media_put_into_text_leave_the_text(text, data):
    offset = data.draw(st.integers(0, sum(run.length for run in text)))
    items = data.draw(st.lists(media, max_size=3))
    parts = split_at(text, offset, items)
    assert text_of(parts) == text_of(text)
    assert [part for part in parts if isinstance(part, MediaRef)] == items
    assert all(part.length for part in parts if isinstance(part, TokenRun))
    before = parts[: next((place for place, part in enumerate(parts) if isinstance(part, MediaRef)), 0)]
    assert not items or sum(run.length for run in before) == offset


times = st.lists(st.integers(0, 200).map(float), max_size=30)


@given(times, st.integers(0, 250).map(float))
def test_order_is_a_stable_sort_or_a_refusal(arrivals, reorder_ms):
    rows = [(time_ms, line, f"row {line}") for line, time_ms in enumerate(arrivals, start=2)]
    furthest_back = max((max(arrivals[: i + 1]) - time_ms for i, time_ms in enumerate(arrivals)), default=0.0)
    try:
        ordered = list(in_order(rows, Path("trace"), reorder_ms))
    except InputError:
        assert furthest_back > reorder_ms
    else:
        assert furthest_back <= reorder_ms
        assert ordered == sorted(rows, key=lambda row: row[0])


@given(
    times.filter(bool).map(sorted),
    st.tuples(st.integers(0, 150), st.integers(1, 150)),
    st.none() | st.integers(1, 9),
    st.sampled_from([0.5, 1.0, 4.0]),
)
def test_a_cut_is_a_filter(arrivals, window_ms, limit, rate_scale):
    start_ms, end_ms = window_ms[0], window_ms[0] + window_ms[1]
    rows = [(time_ms, line, line) for line, time_ms in enumerate(arrivals)]
    wanted = [
        ((t - arrivals[0] - start_ms) / rate_scale, line) for t, line, _ in rows if start_ms <= t - arrivals[0] < end_ms
    ][:limit]
    cut = TraceCut((start_ms / 1e3, end_ms / 1e3), limit, rate_scale)
    try:
        taken = [(time_ms, line) for time_ms, line, _ in cut.apply(rows, Path("trace"), None)]
    except InputError:
        assert not wanted
    else:
        assert taken == wanted
        assert taken


requests_of_text = st.lists(
    st.tuples(st.integers(0, 10**6), st.lists(runs, min_size=1, max_size=3)),
    unique_by=lambda pair: pair[0],
    max_size=12,
)


@settings(max_examples=60)
@given(
    requests_of_text,
    st.floats(0, 1),
    st.sampled_from(["start", "end", "random"]),
    st.none() | st.builds(dict, probability=st.floats(0, 1), pool_size=st.integers(1, 5)),
    st.integers(0, 2**32),
    st.data(),
)
def test_an_overlay_belongs_to_each_request_alone(pairs, share, position, reuse, seed, data):
    plain = [WorkloadRequest(f"r{number}", float(place), tuple(text), 1) for place, (number, text) in enumerate(pairs)]
    spec = OverlaySpec.model_validate(
        {
            "share": share,
            "position": position,
            "reuse": reuse,
            "size": ["720p", [8, 8]][seed % 2],
            "count": {"kind": "uniform", "low": 0, "high": 3},
        }
    )
    laid = list(overlay_images(plain, spec, seed))
    for before, after in zip(plain, laid, strict=True):
        assert text_of(after.parts) == text_of(before.parts)
        assert (after.request_id, after.arrival_ms, after.output_tokens) == (
            before.request_id,
            before.arrival_ms,
            before.output_tokens,
        )
    some = [place for place in range(len(plain)) if data.draw(st.booleans())]
    assert list(overlay_images([plain[place] for place in some], spec, seed)) == [laid[place] for place in some]


distributions = st.one_of(
    st.integers(0, 900),
    st.tuples(st.integers(0, 9), st.integers(9, 400)).map(
        lambda ends: {"kind": "uniform", "low": ends[0], "high": ends[1]}
    ),
    st.builds(
        lambda most: {"kind": "lognormal", "mean": 200, "stdev": 300, "max": most}, st.none() | st.integers(1, 900)
    ),
    st.lists(st.integers(0, 900), min_size=1).map(
        lambda values: {"kind": "histogram", "values": dict.fromkeys(values, 1)}
    ),
)


@given(distributions, distributions, st.integers(0, 90), st.booleans())
def test_what_a_workload_says_of_its_text_holds_of_each_request(text, output, shared, has_pictures):
    """And it says something where lengths have a bound and there is nothing but text."""
    pictures = {"images": {"size": "224x224"}} if has_pictures else {}
    shape = {"text_tokens": text, "output_tokens": output, "shared_prefix_tokens": shared, **pictures}
    assume(text != 0 or shared or has_pictures)
    assume(output != 0)
    workload = PoissonSpec(rate_req_s=9, num_requests=40, **shape).build(Path(), 0)
    most = workload.most_text_tokens
    is_bounded = not any(isinstance(one, dict) and one.get("max", 1) is None for one in (text, output))
    assert (most is not None) == (is_bounded and not has_pictures)
    requests = list(workload.at_load(2).between(0, 1e9))
    assert len({one.request_id for one in requests}) == len(requests) == 40
    if most is not None:
        assert not any(one.media or one.leaves_ms for one in requests)
        assert all(0 < RunPrompt(one.text).num_tokens <= most - one.output_tokens for one in requests)
    assert with_clients(workload, ClientsSpec(patience_ms=5), 0).most_text_tokens is None
