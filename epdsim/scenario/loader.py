"""From a scenario file to validated runs: every point of its axes is a whole scenario of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from epdsim.core.errors import InputError
from epdsim.scenario.points import Point
from epdsim.scenario.schema import AxisValue, ScenarioSpec
from epdsim.scenario.yaml_file import YamlFile, load_yaml


@dataclass(frozen=True, slots=True)
class Scenario:
    """A loaded file.

    Attributes:
        file: Data and lines.
        spec: The file as it stands, validated.
        points: Axis values of every run, in order.
    """

    file: YamlFile
    spec: ScenarioSpec
    points: tuple[Point, ...]

    @property
    def folder(self) -> Path:
        """What relative paths in the file start from."""
        return self.file.path.parent

    def at(self, point: Point, constants: Mapping[str, float] | None = None) -> ScenarioSpec:
        """The scenario of one run: the file with the axis values, and fitted constants, put in."""
        data = copy.deepcopy(self.file.data)
        for axis, value in point.items():
            for key, setting in self._settings(axis, value).items():
                put(data, key, setting, self.file)
        for key, constant in (constants or {}).items():
            put(data, key, constant, self.file)
        return validate(data, self.file)

    def _settings(self, axis: str, value: AxisValue) -> dict[str, Any]:
        meaning = self.spec.axes[axis]
        return {meaning: value} if isinstance(meaning, str) else meaning[str(value)]


def load_scenario(path: Path, overrides: Iterable[str] = ()) -> Scenario:
    """Read, check and expand a scenario file.

    Args:
        path: The YAML file.
        overrides: `dotted.key=value` settings from the command line; the value is YAML.

    Raises:
        InputError: With line and key.
    """
    file = load_yaml(path)
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator:
            raise InputError(f"--set {override!r}", "it has no '='", "write dotted.key=value")
        put(file.data, key, yaml.safe_load(value), file)
    spec = validate(file.data, file)
    scenario = Scenario(file, spec, tuple(_points(spec, file)))
    for point in scenario.points:
        scenario.at(point)
    return scenario


def validate(data: dict[str, Any], file: YamlFile) -> ScenarioSpec:
    """Check plain data against the schema; errors carry the place in the file."""
    try:
        return ScenarioSpec.model_validate(data)
    except ValidationError as error:
        raise YamlFile(file.path, data, file.lines).explain(error) from error


def put(data: dict[str, Any], key: str, value: object, file: YamlFile) -> None:
    """Set a dotted key in plain data; numbers are places in lists, absent mappings on the way are made.

    Raises:
        InputError: The key leads through something that is neither mapping nor list, or past the end of a list.
    """
    *parents, last = key.split(".")
    node: Any = data
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else _element(node, parent)
    if isinstance(node, dict):
        node[last] = value
    elif _element(node, last) is not None:
        node[int(last)] = value
    else:
        raise InputError(
            f"{file.path}, key {key!r}", "it leads nowhere", "name a key of the scenario, list places as numbers"
        )


def _element(node: object, place: str) -> Any:
    """An element of a list, None when there is none."""
    return node[int(place)] if isinstance(node, list) and place.isdigit() and int(place) < len(node) else None


def _points(spec: ScenarioSpec, file: YamlFile) -> Iterator[Point]:
    if not spec.runs:
        yield {}
    for index, block in enumerate(spec.runs):
        for axis, values in block.items():
            _check_axis(spec, file, ("runs", index, axis), axis, values)
        for values in product(*block.values()):
            yield dict(zip(block, values, strict=True))


def _check_axis(
    spec: ScenarioSpec, file: YamlFile, place: tuple[str | int, ...], axis: str, values: list[AxisValue]
) -> None:
    meaning = spec.axes.get(axis)
    if meaning is None:
        raise InputError(file.place(place), f"no axis {axis!r}", f"the axes are {sorted(spec.axes)}")
    unknown = [] if isinstance(meaning, str) else [value for value in values if str(value) not in meaning]
    if unknown:
        raise InputError(
            file.place(place) + f": {unknown[0]!r}", f"axis {axis!r} has no such setting", f"it has {sorted(meaning)}"
        )
