"""Service levels: the guard gives a run up only when it is lost, and then for certain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.request import WARM_UP
from epdsim.events import FirstToken, RequestArrived, RequestFailed, RequestFinished
from epdsim.report.sink import MetricsSink
from epdsim.scenario.slo import GoodCounter, SloGuard, SloMissedError, decided_by_few, missed

LIVES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 60), st.integers(0, 90), st.integers(1, 4)), min_size=1, max_size=25
)
SLOS = st.dictionaries(
    st.sampled_from(["ttft_ms.p50", "ttft_ms.p90", "ttft_ms.p99", "ttft_ms.max", "tpot_ms.p90", "tpot_ms.max"]),
    st.integers(1, 60),
    min_size=1,
    max_size=3,
)


def events_of(lives, slo_class=""):
    events = []
    for number, (_, first_ms, rest_ms, output) in enumerate(lives):
        name, at = f"r{number}{slo_class}", sum(life[0] for life in lives[: number + 1])
        end_ms = at + first_ms + (rest_ms if output > 1 else 0)
        events += [
            RequestArrived(at, "o", name, output, slo_class),
            FirstToken(at + first_ms, "p", name),
            RequestFinished(end_ms, "p", name, output),
        ]
    order = {RequestArrived: 0, FirstToken: 1, RequestFinished: 2}
    return sorted(events, key=lambda event: (event.time_ms, order[type(event)]))


def judge(events, slo, num_requests):
    """Whether the guard gives up, and what the whole run comes to."""
    metrics, guard, given_up = MetricsSink(), SloGuard(slo, num_requests), False
    for event in events:
        metrics(event)
        try:
            if not given_up:
                guard(event)
        except SloMissedError:
            given_up = True
    return given_up, metrics.result()


@given(LIVES, SLOS)
def test_a_run_that_is_given_up_would_have_missed(lives, slo) -> None:
    slo = {name: bound for name, bound in slo.items() if name.startswith("ttft") or any(life[3] > 1 for life in lives)}
    given_up, metrics = judge(events_of(lives), slo, len(lives))
    lost = missed(metrics, slo)
    if given_up:
        assert lost
    if not lost:
        assert not given_up


@given(LIVES, st.integers(1, 60))
def test_every_miss_of_a_largest_ttft_is_given_up(lives, bound) -> None:
    """The twin: a guard that never gives up would be right, and useless."""
    slo = {"ttft_ms.max": bound}
    given_up, metrics = judge(events_of(lives), slo, len(lives))
    assert given_up == bool(missed(metrics, slo))


@given(LIVES, LIVES)
def test_warm_ups_are_not_judged(warm_ups, lives) -> None:
    late = [(gap, first + 1000, rest, output) for gap, first, rest, output in warm_ups]
    events = sorted([*events_of(late, WARM_UP), *events_of(lives)], key=lambda event: event.time_ms)
    assert judge(events, {"ttft_ms.max": 60.5}, len(lives))[0] is False


def test_a_request_that_waits_is_late_before_its_token_comes() -> None:
    guard = SloGuard({"ttft_ms.p99": 100}, 1)
    guard(RequestArrived(0, "o", "r", 1))
    guard(RequestArrived(100, "o", "s", 1))
    with pytest.raises(SloMissedError, match=r"ttft_ms\.p99 for certain over 100"):
        guard(RequestArrived(101, "o", "t", 1))


def test_what_is_not_served_meets_nothing() -> None:
    events = [RequestArrived(0, "o", "r", 1), RequestFailed(1, "o", "r", "why")]
    given_up, metrics = judge(events, {"ttft_ms.p99": 100}, 1)
    assert given_up
    (one,) = missed(metrics, {"ttft_ms.p99": 100})
    assert str(one) == "requests not served 1 over 0"


def test_good_requests_are_those_all_of_whose_own_latencies_are_within_the_bounds() -> None:
    counter = GoodCounter({"ttft_ms.p99": 50, "ttft_ms.mean": 90, "tpot_ms.p50": 10})
    for name, arrived, first, last, tokens in [
        ("good", 0, 50, 70, 3),
        ("late", 0, 51, 60, 3),
        ("slow", 0, 10, 31, 3),
        ("short", 0, 40, 40, 1),
        (WARM_UP, 0, 1, 2, 2),
    ]:
        slo_class = WARM_UP if name == WARM_UP else "default"
        counter(RequestArrived(arrived, "o", name, 1, slo_class))
        counter(FirstToken(first, "p", name))
        counter(RequestFinished(last, "p", name, tokens))
    counter(RequestArrived(0, "o", "lost", 1))
    counter(RequestFailed(1, "o", "lost", "why"))
    assert counter.num_good == 2


def test_who_leaves_without_a_first_token_was_not_served_and_who_had_one_was():
    waiting, answered = (RequestFailed(4, "o", "r", "left", aborted=True, output_tokens=n) for n in (0, 3))
    guard = SloGuard({"ttft_ms.p99": 10}, 1)
    for event in (RequestArrived(0, "o", "r", 9), FirstToken(1, "o", "r"), answered):
        guard(event)
    guard = SloGuard({"ttft_ms.p99": 10}, 1)
    guard(RequestArrived(0, "o", "r", 9))
    with pytest.raises(SloMissedError, match="not served"):
        guard(waiting)


@pytest.mark.parametrize(
    ("figure", "count", "few"),
    [
        ("ttft_ms.p99", 12, 1),
        ("ttft_ms.p99", 420, 5),
        ("ttft_ms.p99", 901, 9),
        ("ttft_ms.p90", 91, 9),
        ("ttft_ms.p99", 1_000, None),
        ("ttft_ms.p90", 100, None),
        ("ttft_ms.p50", 20, None),
        ("ttft_ms.max", 20, None),
        ("ttft_ms", 20, None),
    ],
)
def test_a_bounded_quantile_that_few_requests_decide_is_told(figure, count, few) -> None:
    """Held against the guard: so many may be late, and one more breaks the bound for certain."""
    slo = {figure: 100.0}

    def with_late(num_late):
        return judge(events_of([(0, 200 if place < num_late else 10, 0, 1) for place in range(count)]), slo, count)

    lines = decided_by_few(with_late(0)[1], slo)
    if few is None:
        assert lines == []
        return
    slowest = f"{few} slowest" if few > 1 else "slowest"
    assert lines == [f"{figure}: decided by the {slowest} of {count} requests, as if longer traffic had no other"]
    assert [with_late(num_late)[0] for num_late in (few, few + 1)] == [False, True]


def test_quantiles_that_rest_on_as_many_share_a_sentence() -> None:
    _, metrics = judge(events_of([(0, 10, 20, 2)] * 40), {}, 40)
    (line,) = decided_by_few(metrics, {"ttft_ms.p99": 1.0, "tpot_ms.p99": 1.0})
    assert line.startswith("ttft_ms.p99 and tpot_ms.p99: decided by the slowest of 40 requests")
    assert len(decided_by_few(metrics, {"ttft_ms.p99": 1.0, "tpot_ms.p90": 1.0})) == 2
