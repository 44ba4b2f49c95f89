"""The page on workloads: its example runs, and its table of kinds is complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from epdsim.workload import WorkloadSpec

PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/workloads.md").read_text()


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "workloads.md", "exec"), {})
    assert re.match(
        r"1[23]\d\d images; lengths, pictures and arrivals independent; poisson \(text_tokens lognormal",
        capsys.readouterr().out,
    )


def test_every_kind_is_that_of_its_model():
    kinds = get_args(WorkloadSpec)[1].models()
    assert all(model.model_fields["kind"].default == kind for kind, model in kinds.items())


def test_every_kind_stands_in_the_table():
    kinds = get_args(WorkloadSpec)[1].models()
    table = PAGE.split("## Kinds")[1].split("**Distributions.**")[0]
    assert {
        kind
        for row in table.splitlines()
        for kind in re.findall(r"`([a-z-]+)`", row.split("|")[1] if "|" in row else "")
    } >= set(kinds)
