"""A scenario file that each test changes a little."""

from __future__ import annotations

import pytest
import yaml

from epdsim.scenario import load_scenario

BASE = {
    "name": "unit",
    "family": "qwen3-vl-8b",
    "costs": {
        "lm": {"kind": "linear", "fixed_ms": 2.0, "prefill_token_ms": 0.01},
        "encode": {"kind": "linear", "fixed_ms": 1.0, "patch_ms": 0.002},
        "render": {"kind": "linear", "image_ms": 3.0, "megapixel_ms": 0.0, "item_ms": 0.0, "text_token_us": 0.0},
        "body_link": {"kind": "linear", "bandwidth_bytes_per_s": 1e12},
        "ec_link": {"kind": "linear", "bandwidth_bytes_per_s": 1e12},
        "kv_link": {"kind": "linear", "bandwidth_bytes_per_s": 1e12},
        "kv_bytes_per_token": 0,
        "hop_ms": 0.0,
    },
    "workload": {
        "kind": "fixed",
        "requests": [
            {
                "id": "r",
                "output_tokens": 2,
                "parts": [{"text_tokens": 50}, {"modality": "image", "size": [320, 320], "count": 1}],
            }
        ],
    },
}


@pytest.fixture(scope="session")
def scenario(tmp_path_factory):
    """Loads the base file with further keys and overrides."""

    def load(*overrides, **more):
        path = tmp_path_factory.mktemp("scenario") / "unit.yaml"
        path.write_text(yaml.safe_dump(BASE | more, sort_keys=False), encoding="utf-8")
        return load_scenario(path, overrides)

    return load
