"""YAML with places: which line a value stands on, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.scenario.yaml_file import load_yaml, parse_value

TEXT = """\
name: a            # 1
nested:            # 2
  list:            # 3
    - {x: 1}       # 4
    - y: 2         # 5
      z: [3, 4]    # 6
  flow: {p: 1,     # 7
         q: 2}     # 8
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file.yaml"

    def write(text):
        path.write_text(text, encoding="utf-8")
        return load_yaml(path)

    return write


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("name",), 1),
        (("nested",), 2),
        (("nested", "list"), 3),
        (("nested", "list", 0), 4),
        (("nested", "list", 0, "x"), 4),
        (("nested", "list", 1, "y"), 5),
        (("nested", "list", 1, "z", 1), 6),
        (("nested", "flow", "q"), 8),
    ],
)
def test_every_value_has_the_line_it_stands_on(file, keys, line):
    loaded = file(TEXT)
    assert loaded.lines[keys] == line
    assert loaded.place(keys).endswith(f"line {line}, key {'.'.join(map(str, keys))!r}")


def test_an_absent_key_has_the_line_of_what_is_above_it_and_none_at_the_top(file):
    loaded = file(TEXT)
    assert loaded.place(("nested", "list", 0, "gone", "deep")).endswith("line 4, key 'nested.list.0.gone.deep'")
    assert loaded.place(("gone",)) == f"{loaded.path}, key 'gone'"
    assert loaded.place(()) == str(loaded.path)


def test_data_are_those_of_yaml(file):
    assert file(TEXT).data == yaml.safe_load(TEXT)


def test_an_alias_is_a_copy(file):
    data = file("a: &it {x: [1]}\nb: *it\n").data
    data["a"]["x"].append(2)
    assert data["b"] == {"x": [1]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4, key 'b.c': the key stands already on line 3"),
        ("a: 1\n'a': 2\n", "line 2, key 'a': the key stands already on line 1"),
        ("- {a: 1, a: 2}\n", "not a mapping"),
        ("a: [1, {b: 1, b: 2}]\n", "key 'a.1.b'"),
        ("a: *gone\n", "line 1: not YAML (found undefined alias 'gone')"),
        ('a: "x\n', "not YAML"),
        ("a: &x {b: *x}\n", "key 'a.b': the value contains itself"),
        ("? {a: 1}\n: 2\n", "a key in it is a list or a mapping"),
        ("a: 1\nb: !!bool abc\n", "line 2: not YAML (it is no bool)"),
        ("a: 1\nb: !!timestamp abc\n", "line 2: not YAML (it is no timestamp)"),
        ('a: 1\nb: "\\ud800"\n', "line 2, key 'b': half a surrogate pair"),
        ('a: 1\n"\\ud800": 1\n', "line 2: a key in it is no text"),
        ("a: " + "[" * 3000 + "]" * 3000, "line 1: not YAML (nested more than 50 levels deep)"),
        ("\n".join(" " * depth + "a:" for depth in range(1200)), "line 50: not YAML (nested more than 50 levels deep)"),
        ("a: " + "x" * (1 << 20), "it is larger than 1,048,576 bytes"),
        (
            f"a0: &a0 [{'x,' * 10}]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 10}]\n" for i in range(1, 10)),
            "100,000 values",
        ),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_sound_mapping_is_refused_with_its_line(file, text, said):
    with pytest.raises(InputError) as refused:
        file(text)
    assert said in str(refused.value)


def test_a_key_may_stand_in_two_mappings_of_a_list(file):
    assert file("a: [{b: 1}, {b: 2}]\n").data == {"a": [{"b": 1}, {"b": 2}]}


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("1.5e+3", 1500.0), ("[a, b]", ["a", "b"]), ("", None), ("off", False)]
)
def test_a_value_from_outside_is_yaml_too(text, value):
    assert parse_value(text, "here") == value


def test_a_value_that_is_no_yaml_says_where_it_came_from():
    with pytest.raises(InputError, match=r"^--set x: not YAML"):
        parse_value("{a", "--set x")


@given(st.text(max_size=60))
def test_no_text_at_all_gives_anything_but_data_or_an_input_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "file.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(InputError):
        assert isinstance(load_yaml(path).data, dict)
