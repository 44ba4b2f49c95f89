"""YAML with places: plain data, and for every value the line it stands on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from epdsim.core.errors import InputError

KeyPath = tuple[str | int, ...]

_RULES = {
    "extra_forbidden": "no such key",
    "missing": "the key is required",
    "union_tag_not_found": "the key is required, it says what the others mean",
    "union_tag_invalid": "it is one of {expected_tags}",
}
"""pydantic's error types, in words of the file; all others speak for themselves."""


@dataclass(frozen=True, slots=True)
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

    def explain(self, error: ValidationError, prefix: KeyPath = ()) -> InputError:
        """The first problem that pydantic found, told with its place."""
        first = error.errors(include_url=False)[0]
        context = first.get("ctx", {})
        keys = self._keys_in_file((*prefix, *first["loc"]))
        given = first.get("input")
        if "discriminator" in context:
            keys, given = (*keys, context["discriminator"].strip("'")), context.get("tag", given)
        shown = "" if isinstance(given, (dict, list)) or first["type"] == "missing" else f": {given!r}"
        message = str(first["msg"]).removeprefix("Value error, ")
        rule = _RULES[first["type"]].format(**context) if first["type"] in _RULES else message
        more = len(error.errors()) - 1
        return InputError(self.place(keys) + shown, rule, f"{more} more after this" if more else "")

    def _keys_in_file(self, loc: KeyPath) -> KeyPath:
        """Drop the parts of a pydantic location that are tags of a union and not keys of the file."""
        keys: list[str | int] = []
        node: Any = self.data
        for index, part in enumerate(loc):
            is_last = index == len(loc) - 1
            if isinstance(node, dict) and (part in node or is_last):
                keys.append(part)
                node = node.get(part)
            elif isinstance(node, list) and isinstance(part, int) and part < len(node):
                keys.append(part)
                node = node[part]
        return tuple(keys)


def load_yaml(path: Path) -> YamlFile:
    """Read a YAML file whose top is a mapping.

    Raises:
        InputError: It is missing, not text, not YAML, its top is no mapping, or a key stands twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"scenario {str(path)!r}", f"it cannot be read ({reason})", "check the path") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"scenario {str(path)!r}", "its top is not a mapping of keys", "start with 'name: ...'")
        reader = _LineReader(path)
        reader.read(node)
        return YamlFile(path, _unshared(yaml.load(text, Loader=yaml.SafeLoader)), reader.lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(f"{path}, line {mark.line + 1}" if mark else str(path), *_not_yaml(error)) from error
    except ValueError as error:  # what looks like a date and is none
        raise InputError(str(path), *_not_yaml(error)) from error


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
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(where, *_not_yaml(error)) from error


def _not_yaml(error: Exception) -> tuple[str, str]:
    """Rule and remedy for what YAML's parser refuses."""
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    return f"not YAML ({problem})", "mend it, or put the value in quotes"


class _LineReader:
    """Notes the line of every value; refuses keys that stand twice or are no scalars, and values that contain themselves."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._path = path
        self._above: list[yaml.Node] = []

    def read(self, node: yaml.Node, keys: KeyPath = ()) -> None:
        """Note a value and all below it."""
        if node in self._above:
            raise InputError(self._place(node, keys), "the value contains itself", "write it without the alias")
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
            inner = (*keys, key.value)
            if inner in self.lines:
                raise InputError(
                    self._place(key, inner), f"the key stands already on line {self.lines[inner]}", "keep one"
                )
            self.read(value, inner)
            self.lines[inner] = key.start_mark.line + 1

    def _place(self, node: yaml.Node, keys: KeyPath) -> str:
        return _place(self._path, node.start_mark.line + 1, keys)


def _place(path: Path, line: int | None, keys: KeyPath) -> str:
    told = [str(path)] + ([f"line {line}"] if line else []) + ([f"key {'.'.join(map(str, keys))!r}"] if keys else [])
    return ", ".join(told)
