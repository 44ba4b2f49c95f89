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
    "union_tag_not_found": "its key {discriminator} is required",
    "union_tag_invalid": "its {discriminator} must be one of {expected_tags}, not {tag!r}",
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
        """`file, line 12, key a.b`: of the value, or of the nearest one above it when it is absent."""
        known = keys
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        return f"{self.path}, line {line}" + (f", key {'.'.join(map(str, keys))!r}" if keys else "")

    def explain(self, error: ValidationError, prefix: KeyPath = ()) -> InputError:
        """The first problem that pydantic found, told with its place."""
        first = error.errors(include_url=False)[0]
        keys = self._keys_in_file((*prefix, *first["loc"]))
        given = first.get("input")
        shown = "" if isinstance(given, (dict, list)) or first["type"] == "missing" else f": {given!r}"
        message = str(first["msg"]).removeprefix("Value error, ")
        rule = _RULES.get(first["type"], message).format(**first.get("ctx", {}))
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
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}", f"not YAML ({getattr(error, 'problem', error)})", "mend the line") from error
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"scenario {str(path)!r}", "its top is not a mapping of keys", "start with 'name: ...'")
    lines: dict[KeyPath, int] = {}
    _check(node, (), lines, path)
    return YamlFile(path, yaml.load(text, Loader=yaml.SafeLoader), lines)


def _check(node: yaml.Node, keys: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    lines[keys] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key_node, value in node.value:
            inner = (*keys, key_node.value)
            if inner in lines:
                raise InputError(
                    f"{path}, line {key_node.start_mark.line + 1}, key {'.'.join(map(str, inner))!r}",
                    f"the key stands already on line {lines[inner]}",
                    "keep one",
                )
            _check(value, inner, lines, path)
            lines[inner] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _check(value, (*keys, index), lines, path)
