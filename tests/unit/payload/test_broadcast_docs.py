"""The example of the reference page runs and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/broadcast.md"


def test_the_example_prints_what_the_page_says(capsys):
    page = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == printed
