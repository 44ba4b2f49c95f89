"""The examples of the documentation run and print what the pages show.

Page by page, in its order: python blocks share one namespace; of a console block the `$ epdsim` commands run. What a page shows
behind a command, in a `text` block of a tutorial or how-to page, or in one introduced by "prints", must be in the output of what
ran last, line by line: `...` stands for any lines, ` ...` at the end of a line for its rest, and borders of tables are left out.
A console block under an HTML comment "not run: reason" is not run.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from epdsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for page in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md") if "_build" not in page.parts)

BLOCK = re.compile(r"(?P<before>[^\n]*)\n*\n```(?P<language>python|console|text)\n(?P<body>.*?)\n```", re.DOTALL)
BORDER = re.compile(r"[\s━┏┳┓┡╇┩└┴┘─┼├┤]+")
SHOWS_OUTPUT = ("tutorial", "how-to", "README.md")


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    is_run: bool
    is_output: bool


def blocks(page):
    """The code blocks of a page."""
    for match in BLOCK.finditer("\n" + page.read_text(encoding="utf-8")):
        before = match["before"].strip()
        shows = before == "prints" or any(part in SHOWS_OUTPUT for part in page.relative_to(ROOT).parts)
        yield Block(match["language"], match["body"], not before.startswith("<!-- not run: "), shows)


def runs_something(page):
    return any(one.is_run and (one.language == "python" or "$ epdsim " in one.body) for one in blocks(page))


def lines_of(output):
    return [line.rstrip() for line in output.splitlines() if not BORDER.fullmatch(line)]


def assert_shown(shown, output, *, may_skip=False):
    """Every shown line is in the output, in order; `...` skips, and so does the start of a part."""
    have, place = lines_of(output), 0
    for line in lines_of(shown):
        if line == "...":
            may_skip = True
            continue
        head, is_cut = (line[:-4], True) if line.endswith(" ...") else (line, False)
        fits = [i for i in range(place, len(have)) if have[i] == head or (is_cut and have[i].startswith(head))]
        assert fits, f"not in the output: {line!r}; it goes on with\n" + "\n".join(have[place : place + 12])
        assert may_skip or fits[0] == place, f"out of place: {line!r} instead of {have[place]!r}"
        place, may_skip = fits[0] + 1, False


@functools.cache
def run(command):
    """What a command prints, both streams."""
    printed, arguments = io.StringIO(), sys.argv
    sys.argv = shlex.split(command)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), pytest.raises(SystemExit):
            main()
    finally:
        sys.argv = arguments
    return printed.getvalue()


def run_console(body):
    """Run the commands of a block and compare what it shows of each; the output of the last."""
    output = ""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        if command.startswith("epdsim "):
            output = run(command)
            if shown:
                assert_shown(shown, output)
    return output


def run_python(body, namespace):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "example", "exec"), namespace)
    return printed.getvalue()


@pytest.fixture
def in_a_folder_like_the_root(tmp_path, monkeypatch):
    """The repository's files are there, and what an example writes is not left in it."""
    for name in ("docs", "scenarios"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_a_folder_like_the_root")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if runs_something(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_examples_of_a_page(page):
    namespace, output = {"__name__": "example"}, ""
    for block in blocks(page):
        if block.language == "python":
            output = run_python(block.body, namespace)
        elif block.language == "console" and block.is_run:
            output = run_console(block.body) or output
        elif block.language == "text" and block.is_output:
            assert_shown(block.body, output, may_skip=True)


def test_a_shown_line_that_is_not_printed_is_found():
    printed = "one\n┏━━┓\ntwo and more\nthree\n"
    assert_shown("one\ntwo ...\n...\nthree", printed)
    for wrong in ("two and more\none", "four", "one\nthree", "two"):
        with pytest.raises(AssertionError):
            assert_shown(wrong, printed)


def test_there_are_examples():
    assert sum(map(runs_something, PAGES)) > 8
