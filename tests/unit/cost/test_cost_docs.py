"""The examples of the reference page run and say what they claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from epdsim.cost import spec

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/costs.md"


def block(language):
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return text


def test_the_python_example_prints_about_what_it_says(capsys):
    exec(compile(block("python"), str(PAGE), "exec"), {})
    printed = [float(line) for line in capsys.readouterr().out.split()]
    assert printed == pytest.approx([18, 11, 5, 0.3, 13, 7], rel=0.15)


def test_the_yaml_example_builds():
    for key, text in yaml.safe_load(block("yaml")).items():
        kind = {"lm": "LmCostSpec", "encode": "EncodeCostSpec", "render": "RenderCostSpec", "link": "LinkSpec"}[key]
        assert getattr(spec, f"build_{key}")(TypeAdapter(getattr(spec, kind)).validate_python(text), Path())
