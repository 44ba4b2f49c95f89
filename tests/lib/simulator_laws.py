"""What tests of the simulator's laws share: scenario files as data, how they are played, and laws that compare runs."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from epdsim.events import FirstToken, LegSent, RequestFailed, RequestFinished, StepFinished, StepPlanned
from epdsim.fleet import simulate
from epdsim.report.sink import MetricsSink
from epdsim.scenario.loader import Scenario, validate
from epdsim.scenario.runner import BuiltPoint, build_point
from epdsim.scenario.yaml_file import YamlFile
from epdsim.spec import OF_FLEETS, Judge

ENCODER = msgspec.json.Encoder()


def built(told) -> BuiltPoint:
    """Fleet and workload of a file."""
    file = YamlFile(Path("random.yaml"), copy.deepcopy(told), {})
    scenario = Scenario(file, validate(file.data, file), ({},))
    return build_point(scenario, {}, scenario.spec.seed)


def play(told, *, by_step=False, requests=None):
    """Events of a run, and what the monitors say of it."""
    point, events, judging = built(told), [], Judge(OF_FLEETS)
    source = point.workload if requests is None else requests
    simulate(point.fleet, point.family, source, [events.append, judging], wants_detail=True, takes_strides=not by_step)
    return events, {name: one.first.told for name, one in judging.verdicts().items() if one.first is not None}


def outcome(events):
    """What a run comes to, however its steps are told: all other plain events, and the sums of steps."""
    plain = [one for one in events if not one.is_detail and not isinstance(one, StepFinished)]
    steps = defaultdict(Counter)
    for one in events:
        if isinstance(one, StepFinished):
            steps[one.instance].update(
                steps=one.num_steps, tokens=one.num_tokens, sent=one.broadcast_bytes, busy=one.duration_ms
            )
    return plain, steps


def figures(told, *, by_step: bool) -> bytes:
    """All figures of a run as JSON: as a sweep runs it, or with every step planned, told and timed on its own."""
    point, sink = built(told), MetricsSink()
    simulate(point.fleet, point.family, point.workload, [sink], wants_detail=by_step, takes_strides=not by_step)
    return ENCODER.encode(sink.result())


def is_same(told) -> bool:
    """SIM-SAME: twice the same bytes."""
    first, second = (b"\n".join(map(ENCODER.encode, play(told)[0])) for _ in range(2))
    return first == second


SLOWER = (
    ("costs", "lm", "fixed_ms"), ("costs", "lm", "prefill_token_ms"), ("costs", "encode", "fixed_ms"),
    ("costs", "render", "image_ms"), ("costs", "hop_ms"), ("costs", "kv_bytes_per_token"),
)  # fmt: skip


def alone(told):
    """One request in an empty system, and when it ended."""
    point = built(told)
    one = next(iter(point.workload))
    events, _ = play(told, requests=[one])
    return next(event.time_ms for event in events if isinstance(event, (RequestFinished, RequestFailed)))


def gets_faster(told) -> list[str]:
    """SIM-MONO: keys with which, three times as large, one request alone ends earlier."""
    base, found = alone(told), []
    for *path, last in SLOWER:
        slower = copy.deepcopy(told)
        node = slower
        for key in path:
            node = node[key]
        node[last] *= 3
        found += [last] if alone(slower) < base else []
    return found


def with_longer_answer(request, tokens):
    changed = copy.copy(request)
    object.__setattr__(changed, "output_tokens", request.output_tokens + tokens)
    return changed


def up_to_the_end_of(events, request_id):
    """Where legs went and who was admitted, until a request had all its tokens."""
    for one in events:
        if isinstance(one, (RequestFinished, RequestFailed)) and one.request_id == request_id:
            return
        if isinstance(one, (LegSent, FirstToken)):
            yield one


def is_blind(told) -> bool:
    """SIM-BLIND: as long as an answer could still be the shorter one, a longer answer changes nothing."""
    requests = list(built(told).workload)
    chosen = len(requests) // 2
    name = requests[chosen].request_id
    asked = [copy.copy(one) for one in requests]
    asked[chosen] = with_longer_answer(requests[chosen], 7)
    short, long = play(told, requests=requests)[0], play(told, requests=asked)[0]
    before = list(up_to_the_end_of(short, name))
    return list(up_to_the_end_of(long, name))[: len(before)] == before


def steady_file(topology="e+p+d", **changes):
    """Two of everything, and some load."""
    link = {"kind": "linear", "bandwidth_bytes_per_s": 1e8, "sharing": "fleet"}
    pool = {"count": 2, "scheduler": {"num_gpu_blocks": 600, "max_num_seqs": 3}}
    return {
        "name": "steady",
        "family": "qwen3-vl-8b",
        "fleet": {"topology": topology, "encode": {"count": 2, "max_batch_items": 2}, "prefill": pool, "decode": pool} | changes,
        "costs": {
            "lm": {"kind": "linear", "fixed_ms": 8, "prefill_token_ms": 0.02, "decode_request_ms": 0.05},
            "encode": {"kind": "linear", "fixed_ms": 20, "patch_ms": 0.01},
            "render": {"kind": "linear", "image_ms": 2, "megapixel_ms": 4},
            "hop_ms": 0.5,
            "body_link": link,
            "ec_link": link,
            "kv_link": link,
            "kv_bytes_per_token": 36864,
        },
        "workload": {
            "kind": "poisson", "rate_req_s": 30, "num_requests": 24, "text_tokens": 60, "output_tokens": 20,
            "images": {"count": 2, "size": {"kind": "fixed", "size": [112, 224]}},
        },
    }  # fmt: skip


PUSH = {"orchestrator": "push", "ec": {"kind": "push"}}


def computed_after_leaving(told) -> list[str]:
    """Requests whose clients have left, and that a later step computes all the same."""
    left, found = set(), []
    for one in play(told, by_step=True)[0]:
        if isinstance(one, RequestFailed) and one.aborted:
            left.add(one.request_id)
        elif isinstance(one, StepPlanned):
            found += sorted(left & one.num_scheduled_tokens.keys())
    return found
