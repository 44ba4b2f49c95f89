"""The example of the reference page runs."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/media.md"


def test_the_example_runs():
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert text.count("assert") == 7
    exec(compile(text, str(PAGE), "exec"), {})
