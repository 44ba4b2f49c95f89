"""Named streams, distributions and arrival processes."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from epdsim.core.errors import InputError
from epdsim.workload import named_stream
from epdsim.workload.arrivals import (
    BLOCK,
    BurstArrivals,
    ConstantArrivals,
    GammaArrivals,
    GapLaw,
    PoissonArrivals,
    WeibullArrivals,
)
from epdsim.workload.distributions import LengthDistribution
from epdsim.workload.sizes import MediaSize, SizeDistribution
from epdsim.workload.streams import KeyedStreams

LENGTHS: TypeAdapter = TypeAdapter(LengthDistribution)
SIZES: TypeAdapter = TypeAdapter(SizeDistribution)


def times_until(process, end_s, rng):
    """Arrivals before `end_s`."""
    found = []
    for block in process.arrival_blocks_s(rng):
        found.append(block[block < end_s])
        if block[-1] >= end_s:
            return np.concatenate(found)
    raise AssertionError("arrivals are endless")


class TestStreams:
    def test_the_same_names_draw_the_same_and_others_do_not(self):
        first = named_stream(3, "client", 12).random(4)
        assert (first == named_stream(3, "client", 12).random(4)).all()
        others = [
            named_stream(4, "client", 12),
            named_stream(3, "client", 13),
            named_stream(3, "client12"),
            named_stream(3),
        ]
        assert all((first != other.random(4)).all() for other in others)

    def test_draws_do_not_depend_on_the_hash_seed_of_the_process(self):
        code = (
            "from epdsim.workload.streams import *;"
            "k = KeyedStreams(5, 'x');"
            "print(named_stream(5, 'a', 1).integers(2**60), k.coin('r'), k.generator('r').integers(2**60))"
        )
        outputs = {
            subprocess.run(
                [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
            ).stdout
            for seed in ("1", "2")
        }
        assert len(outputs) == 1
        assert outputs.pop().strip()

    def test_a_negative_seed_is_refused(self):
        with pytest.raises(InputError, match="seed -1: a seed is at least 0"):
            named_stream(-1, "x")

    def test_coins_are_uniform_and_belong_to_ids(self):
        streams = KeyedStreams(1, "overlay")
        coins = np.array([streams.coin(f"r{index}") for index in range(20_000)])
        assert ((coins >= 0) & (coins < 1)).all()
        assert np.histogram(coins, 10, (0, 1))[0] == pytest.approx([2000] * 10, abs=5 * math.sqrt(2000))
        assert streams.coin("r7") == coins[7]
        assert KeyedStreams(2, "overlay").coin("r7") != coins[7]


class TestLengths:
    @pytest.mark.parametrize(
        ("spec", "mean", "stdev"),
        [
            (7, 7, 0),
            ({"kind": "constant", "value": 0}, 0, 0),
            ({"kind": "uniform", "low": 10, "high": 20}, 15, math.sqrt(10)),
            ({"kind": "normal", "mean": 1000, "stdev": 50}, 1000, 50),
            ({"kind": "lognormal", "mean": 1000, "stdev": 800}, 1000, 800),
            ({"kind": "histogram", "values": {1: 6, 4: 2}}, 1.75, math.sqrt(1.6875)),
        ],
    )
    def test_mean_and_spread_are_the_stated_ones(self, spec, mean, stdev):
        draws = LENGTHS.validate_python(spec).draw(named_stream(1, "test"), 200_000)
        assert draws.shape == (200_000,)
        assert draws.dtype == np.int64
        assert draws.mean() == pytest.approx(mean, rel=0.01)
        assert draws.std() == pytest.approx(stdev, rel=0.03)

    def test_uniform_includes_both_ends(self):
        draws = LENGTHS.validate_python({"kind": "uniform", "low": 3, "high": 5}).draw(named_stream(1, "test"), 1000)
        assert sorted(set(draws.tolist())) == [3, 4, 5]

    @pytest.mark.parametrize("kind", ["normal", "lognormal"])
    def test_bells_are_clipped_and_never_negative(self, kind):
        spec = {"kind": kind, "mean": 100, "stdev": 200}
        assert LENGTHS.validate_python(spec).draw(named_stream(1, "test"), 10_000).min() >= 0
        clipped = LENGTHS.validate_python({**spec, "min": 90, "max": 110}).draw(named_stream(1, "test"), 10_000)
        assert (clipped.min(), clipped.max()) == (90, 110)

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (-1, "greater than or equal to 0"),
            ({"kind": "uniform", "low": 3, "high": 1}, "low 3 is above high 1"),
            ({"kind": "normal", "mean": 5, "stdev": 1, "min": 9, "max": 8}, "min 9 is above max 8"),
            ({"kind": "normal", "mean": math.nan, "stdev": 1}, "finite"),
            ({"kind": "histogram", "values": {}}, "weights must be"),
            ({"kind": "histogram", "values": {3: 0}}, "weights must be"),
            ({"kind": "histogram", "values": {3: -1}}, "greater than or equal to 0"),
        ],
    )
    def test_nonsense_is_refused(self, spec, message):
        with pytest.raises(ValidationError, match=message):
            LENGTHS.validate_python(spec)


class TestSizes:
    @pytest.mark.parametrize(
        "given", ["1080p", "1080x1920", "(1080, 1920)", [1080, 1920], {"kind": "fixed", "size": [1080, 1920]}]
    )
    def test_one_size_in_its_spellings(self, given):
        assert SIZES.validate_python(given).draw(named_stream(1, "test"), 2) == [MediaSize(1080, 1920)] * 2

    @pytest.mark.parametrize(
        "spec",
        [
            {
                "kind": "weighted",
                "sizes": [
                    {"size": "360p", "weight": 3},
                    {"size": [8, 9, 4], "weight": 1},
                    {"size": [1, 1], "weight": 0},
                ],
            },
            {"kind": "buckets", "buckets": {"(360, 640, 1)": 0.75, "(8, 9, 4)": 0.25, "(1, 1, 1)": 0.0}},
        ],
    )
    def test_lists_are_drawn_by_weight(self, spec):
        draws = SIZES.validate_python(spec).draw(named_stream(1, "test"), 10_000)
        assert set(draws) == {MediaSize(360, 640), MediaSize(8, 9, 4)}
        assert draws.count(MediaSize(8, 9, 4)) == pytest.approx(2500, abs=5 * math.sqrt(1875))

    def test_a_clip_has_frames_and_seconds(self):
        assert (MediaSize(8, 9, 60).modality, MediaSize(8, 9, 60).duration_s) == ("video", 2.0)
        assert (MediaSize(8, 9).modality, MediaSize(8, 9).duration_s) == ("image", 0.0)

    def test_token_sizes_have_no_pixels_and_at_least_one_token(self):
        draws = SIZES.validate_python({"kind": "tokens", "tokens": {"kind": "uniform", "low": 0, "high": 2}}).draw(
            named_stream(1, "t"), 99
        )
        assert {(size.height, size.width, size.num_tokens) for size in draws} == {(0, 0, 1), (0, 0, 2)}

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ([0, 5], "at least 1 pixel"),
            ("640x0", "at least 1 pixel"),
            ([5, 5, 0], "at least 1 frame"),
            ([5], "a size is HEIGHTxWIDTH"),
            ("big", "a size is HEIGHTxWIDTH"),
            ([5.5, 5], "a size is HEIGHTxWIDTH"),
            ({"kind": "buckets", "buckets": {}}, "at least 1 item"),
        ],
    )
    def test_nonsense_is_refused(self, given, message):
        with pytest.raises(ValidationError, match=message):
            SIZES.validate_python(given)


class TestArrivals:
    @pytest.mark.parametrize(
        ("process", "cv"),
        [
            (PoissonArrivals(rate_req_s=20), 1.0),
            (GammaArrivals(rate_req_s=20, cv=2.5), 2.5),
            (WeibullArrivals(rate_req_s=20, shape=0.7), GapLaw("Weibull", 0.7).cv),
            (WeibullArrivals(rate_req_s=20, shape=2.0), math.sqrt(4 / math.pi - 1)),
            (ConstantArrivals(rate_req_s=20), 0.0),
        ],
    )
    def test_rate_and_variation_are_the_stated_ones(self, process, cv):
        times = times_until(process, 5000.0, named_stream(1, "test"))
        gaps = np.diff(times)
        assert len(times) == pytest.approx(100_000, rel=0.02 + 3 * cv / math.sqrt(100_000))
        assert (gaps >= 0).all()
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.04, abs=1e-9)

    @pytest.mark.parametrize(
        "law", [GapLaw("Gamma", 0.1), GapLaw("Gamma", 4.0), GapLaw("Weibull", 0.4), GapLaw("Weibull", 3.0)]
    )
    def test_the_first_interval_has_no_more_arrivals_than_any_other(self, law):
        """A renewal process in equilibrium has expectation rate x length from the start, however bursty it is."""
        rng, counts = named_stream(2, "test"), []
        for _ in range(4000):
            position, count = law.draw_first(rng), 0
            while position < 3.0:
                count += 1
                position += float(law.draw(rng, 1)[0])
            counts.append(count)
        error = np.std(counts) / math.sqrt(len(counts))
        assert np.mean(counts) == pytest.approx(3.0, abs=4 * error)

    def test_a_constant_rate_begins_at_zero(self):
        blocks = list(islice(ConstantArrivals(rate_req_s=4).arrival_blocks_s(named_stream(1, "test")), 2))
        assert np.concatenate(blocks).tolist() == [index / 4 for index in range(2 * BLOCK)]

    def test_bursts_keep_to_their_phases(self):
        silent = times_until(BurstArrivals(rate_req_s=50, on_s=2, off_s=3), 2000.0, named_stream(1, "test"))
        assert (silent % 5 <= 2).all()
        assert len(silent) == pytest.approx(40_000, rel=0.03)
        loud = times_until(
            BurstArrivals(rate_req_s=50, on_s=2, off_s=3, off_rate_req_s=10), 2000.0, named_stream(1, "test")
        )
        assert np.count_nonzero(loud % 5 < 2) == pytest.approx(40_000, rel=0.03)
        assert np.count_nonzero(loud % 5 >= 2) == pytest.approx(12_000, rel=0.05)
        assert (np.diff(loud) >= 0).all()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: PoissonArrivals(rate_req_s=0), "greater than 0"),
            (lambda: PoissonArrivals(rate_req_s=-3), "greater than 0"),
            (lambda: PoissonArrivals(rate_req_s=math.nan), "finite"),
            (lambda: GammaArrivals(rate_req_s=1, cv=0), "greater than 0"),
            (lambda: GammaArrivals(rate_req_s=1, cv=50), "less than or equal to 20"),
            (lambda: WeibullArrivals(rate_req_s=1, shape=0.01), "greater than or equal to 0.1"),
            (lambda: BurstArrivals(rate_req_s=1, on_s=1, off_s=1, off_rate_req_s=2), "swap on and off"),
        ],
    )
    def test_nonsense_is_refused(self, make, message):
        with pytest.raises(ValidationError, match=message):
            make()
