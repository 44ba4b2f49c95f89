"""YAML with places: plain data, and for every value the line it stands on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.workload.specs import key_in

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Far beyond what is written by hand: what is larger is a mistake, or takes the machine with it once aliases are copied."""

_RULES = {
    "extra_forbidden": "no such key",
    "model_type": "it is a mapping of keys",
    "missing": "the key is required",
    "union_tag_not_found": "the key is required, it says what the others mean",
    "union_tag_invalid": "it is one of {expected_tags}",
}
"""pydantic's error types, in words of the file; all others speak for themselves."""


@record
class YamlFile:
    """A parsed file.

    Attributes:
        path: As the user gave it.
        data: Plain mappings, lists and scalars.
        lines: Line number of every value, by its key path.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def place(self, keys: KeyPath) -> str:
        """`file, line 12, key 'a.b'`: of the value, or of the nearest one above it; without a line when there is none."""
        known = keys
        while known and known not in self.lines:
            known = known[:-1]
        return _place(self.path, self.lines[known] if known else None, keys)

    def explain(self, error: ValidationError, validate: Callable[[Any], object]) -> InputError:
        """The first problem that pydantic found, told with its place; `validate` is what raised it."""
        first = error.errors(include_url=False)[0]
        context = first.get("ctx", {})
        keys = key_in(self.data, first["loc"], is_missing=first["type"] == "missing")
        given = first.get("input")
        if "discriminator" in context:
            keys, given = (*keys, context["discriminator"].strip("'")), context.get("tag", given)
        shown = "" if isinstance(given, (dict, list)) or first["type"] == "missing" else f": {short(given)}"
        message = str(first["msg"]).removeprefix("Value error, ")
        rule = _RULES[first["type"]].format(**context) if first["type"] in _RULES else message
        hint, more = "", len(error.errors()) - 1
        if first["type"] == "extra_forbidden":
            from epdsim.workload.unknown_keys import advice  # noqa: PLC0415 - only for what is refused

            hint = advice(error, self.data, validate)
        remedy = filter(None, (hint, f"{more} more after this" if more else ""))
        return InputError(self.place(keys) + shown, rule, "; ".join(remedy))


def short(value: object) -> str:
    """A value as an error shows it."""
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}..."


def load_yaml(path: Path) -> YamlFile:
    """Read a YAML file whose top is a mapping.

    Raises:
        InputError: It is missing, not text, not YAML, its top is no mapping, or a key stands twice.
    """
    told = f"scenario {str(path)!r}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content[:MAX_BYTES].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(told, f"it cannot be read ({reason})", "check the path") from error
    if len(content) > MAX_BYTES:
        raise InputError(told, f"it is larger than {MAX_BYTES:,} bytes", "keep requests in a trace file that it names")
    try:
        return YamlFile(path, *_read(text, path, is_scenario=True))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(f"{path}, line {mark.line + 1}" if mark else str(path), *_not_yaml(error)) from error


class _Loader(yaml.SafeLoader):
    """YAML's loader with a limit to nesting, and a line for every value that its tag or its looks promise to be what it is not."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError) as error:
            tag = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(problem=f"it is no {tag}", problem_mark=node.start_mark) from error


def _read(text: str, path: Path, *, is_scenario: bool = False) -> tuple[Any, dict[KeyPath, int]]:
    """Data, with a copy in place of every alias, and lines."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if is_scenario and not isinstance(node, yaml.MappingNode):
            raise InputError(f"scenario {str(path)!r}", "its top is not a mapping of keys", "start with 'name: ...'")
        if node is None:
            return None, {}
        reader = _LineReader(path)
        reader.read(node)
        return _unshared(loader.construct_document(node)), reader.lines
    finally:
        loader.dispose()


def _unshared(value: Any) -> Any:
    """The data with a copy in place of every alias, so that a change at one place does not reach the other."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def parse_value(text: str, where: str) -> Any:
    """A value as YAML has it, from outside a file.

    Raises:
        InputError: It is not YAML; `where` says whose value it is.
    """
    try:
        return _read(text, Path(where))[0]
    except yaml.YAMLError as error:
        raise InputError(where, *_not_yaml(error)) from error


def _not_yaml(error: yaml.YAMLError) -> tuple[str, str]:
    """Rule and remedy for what YAML's parser refuses."""
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    return f"not YAML ({problem})", "mend it, or put the value in quotes"


class _LineReader:
    """Notes the line of every value; refuses keys that stand twice or are no scalars, and values that contain themselves."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._path = path
        self._above: list[yaml.Node] = []
        self._num_values = 0

    def read(self, node: yaml.Node, keys: KeyPath = ()) -> None:
        """Note a value and all below it."""
        if node in self._above:
            raise InputError(self._place(node, keys), "the value contains itself", "write it without the alias")
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            rule = f"with a copy for every alias the file has more than {MAX_VALUES:,} values"
            raise InputError(self._place(node, keys), rule, "write less")
        if isinstance(node, yaml.ScalarNode) and not _is_text(node.value):
            raise InputError(self._place(node, keys), "half a surrogate pair is no character", "write the character")
        self.lines[keys] = node.start_mark.line + 1
        self._above.append(node)
        if isinstance(node, yaml.MappingNode):
            self._read_mapping(node, keys)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.read(value, (*keys, index))
        self._above.pop()

    def _read_mapping(self, node: yaml.MappingNode, keys: KeyPath) -> None:
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(self._place(key, keys), "a key in it is a list or a mapping", "name keys by text")
            if not _is_text(key.value):
                raise InputError(self._place(key, keys), "a key in it is no text", "write its characters")
            inner = (*keys, key.value)
            if inner in self.lines:
                raise InputError(
                    self._place(key, inner), f"the key stands already on line {self.lines[inner]}", "keep one"
                )
            self.read(value, inner)
            self.lines[inner] = key.start_mark.line + 1

    def _place(self, node: yaml.Node, keys: KeyPath) -> str:
        return _place(self._path, node.start_mark.line + 1, keys)


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _place(path: Path, line: int | None, keys: KeyPath) -> str:
    told = [str(path)] + ([f"line {line}"] if line else []) + ([f"key {'.'.join(map(str, keys))!r}"] if keys else [])
    return ", ".join(told)
