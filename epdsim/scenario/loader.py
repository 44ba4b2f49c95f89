"""From a scenario file to validated runs: every point of its axes is a whole scenario of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.scenario.checks import check_pool, check_references, is_hidden
from epdsim.scenario.goodput import searches_goodput
from epdsim.scenario.points import Point
from epdsim.scenario.schema import AxisValue, ScenarioSpec
from epdsim.scenario.yaml_file import KeyPath, YamlFile, load_yaml, parse_value, short
from epdsim.workload.specs import resolve_path

_LARGEST = 1e30
"""Of all numbers in a file; the inverse is the smallest but 0."""


@record
class Scenario:
    """A loaded file.

    Attributes:
        file: Data and lines.
        spec: The file as it stands, validated.
        points: Axis values of every run, in order.
        overrides: Settings from outside that are in it.
    """

    file: YamlFile
    spec: ScenarioSpec
    points: tuple[Point, ...]
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """What relative paths in the file start from."""
        return self.file.path.parent

    @contextmanager
    def placed(self, *keys: str | int) -> Iterator[None]:
        """Errors about a value of the file get its line and key put in front."""
        try:
            yield
        except InputError as error:
            raise error.at(self.file.place(keys)) from error

    def at(self, point: Point, constants: Mapping[str, float] | None = None) -> ScenarioSpec:
        """The scenario of one run: the file with the axis values, and fitted constants, put in."""
        if not point and not constants:
            return self.spec
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


def load_scenario(path: Path, overrides: Sequence[str] = (), option: str = "--set") -> Scenario:
    """Read, check and expand a scenario file.

    Args:
        path: The YAML file.
        overrides: `dotted.key=value` settings from the command line; the value is YAML.
        option: What they stand behind, for errors.

    Raises:
        InputError: With line and key.
    """
    file = load_yaml(path)
    if {"failure", "case"} <= set(file.data):
        raise InputError(f"scenario {str(path)!r}", "it is a failure that was kept", f"replay it: epdsim replay {path}")
    settings: list[str] = []
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not all(key.split(".")):
            rule = "its key lacks a name" if separator else "it has no '='"
            raise InputError(f"{option} {override!r}", rule, "write dotted.key=value")
        put(file.data, key, parse_value(value, f"{option} {override!r}"), file)
        settings.append(key)
    spec = validate(file.data, file)
    scenario = Scenario(file, spec, tuple(_points(spec)), tuple(overrides))
    check_references(spec, scenario.points, file)
    topologies: set[str] = set()
    for point in scenario.points:
        topologies.add(scenario.at(point).fleet.topology)
        if spec.goodput is not None and searches_goodput(spec, point):
            scenario.at(point, {spec.goodput.key: spec.goodput.low})
    for key in settings:
        hiding = [axis for axis in spec.axes if is_hidden(spec, scenario.points, axis, key)]
        if hiding:
            told = f"the axis {hiding[0]!r} sets this key in every run, so that it has no effect"
            raise InputError(f"{option} {key}=...", told, "change 'axes' or 'runs' instead")
        check_pool(key, topologies, f"{option} {key}=...")
    for axis in spec.axes:
        if not any(axis in point for point in scenario.points):
            _check_unused(scenario, axis)
    return scenario


def _check_unused(scenario: Scenario, axis: str) -> None:
    """See that an axis that no run uses could be used: its settings fit the file, or its key is one of the form."""
    meaning, file = scenario.spec.axes[axis], scenario.file
    if not isinstance(meaning, str):
        for name in meaning:
            scenario.at({axis: name})
        return
    data = copy.deepcopy(file.data)
    try:
        put(data, meaning, None, file)
        ScenarioSpec.model_validate(data)
    except ValidationError as error:
        if any(one["type"] == "extra_forbidden" for one in error.errors(include_url=False)):
            raise YamlFile(file.path, data, file.lines).explain(error, ScenarioSpec.model_validate) from error


def validate(data: dict[str, Any], file: YamlFile) -> ScenarioSpec:
    """Check plain data against the schema; errors carry the place in the file."""
    _check_numbers(data, file)
    try:
        return ScenarioSpec.model_validate(data)
    except ValidationError as error:
        raise YamlFile(file.path, data, file.lines).explain(error, ScenarioSpec.model_validate) from error


def files_named(value: object, folder: Path) -> Iterator[Path]:
    """Files that a text anywhere in plain data names: what a run may read."""
    if isinstance(value, dict):
        value = list(cast("dict[object, object]", value).values())
    if isinstance(value, list):
        for one in cast("list[object]", value):
            yield from files_named(one, folder)
    elif isinstance(value, str) and "\0" not in value:
        try:
            path = resolve_path(value, folder)
            if path.is_file():
                yield path
        except (InputError, OSError):
            return  # a text that is no path at all


def _check_numbers(value: object, file: YamlFile, keys: KeyPath = ()) -> None:
    """Refuse numbers so large or small that products of a few of them leave what a float can hold."""
    inner: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        inner = cast("dict[str | int, object]", value).items()
    elif isinstance(value, list):
        inner = enumerate(cast("list[object]", value))
    elif isinstance(value, (int, float)) and _is_out_of_hand(abs(value)):
        rule = f"its size is not between {1 / _LARGEST:g} and {_LARGEST:g}"
        raise InputError(f"{file.place(keys)}: {short(value)}", rule, "check the number and its unit")
    for key, one in inner:
        _check_numbers(one, file, (*keys, key))


def _is_out_of_hand(size: float) -> bool:
    # Infinity is left to the schema, which says where it may stand; NaN compares false with everything.
    return _LARGEST < size < inf or 0 < size < 1 / _LARGEST


_DOTTED = {("slo",): (), ("plan", "pools"): ("low", "high", "gpus"), ("plan", "check"): ()}
"""Mappings whose keys have dots themselves, and the names that may follow such a key."""


def put(data: dict[str, Any], key: str, value: object, file: YamlFile) -> None:
    """Set a dotted key in plain data; numbers are places in lists, absent mappings on the way are made.

    A key that has dots itself, as figures under `slo` do, is found where it stands.

    Raises:
        InputError: The key leads through something that is neither mapping nor list, or past the end of a list.
    """
    names, done = key.split("."), 0
    node: Any = data
    while True:
        end = done + _num_names(node, tuple(names[:done]), names[done:])
        name, is_last = ".".join(names[done:end]), end == len(names)
        if isinstance(node, dict):
            place: Any = _key(node, name)
            if not is_last:
                node.setdefault(place, {})
        elif _is_place(node, name):
            place = int(name)
        else:
            remedy = "name a key of the scenario, list places as numbers"
            raise InputError(f"{file.path}, key {key!r}", "it leads nowhere", remedy)
        if is_last:
            node[place] = value
            return
        node, done = node[place], end


def _num_names(node: object, above: tuple[str, ...], names: Sequence[str]) -> int:
    """How many of the names are one key: those of the longest that stands there, or what such a mapping has for keys."""
    if isinstance(node, dict):
        for size in range(len(names), 1, -1):
            if ".".join(names[:size]) in node:
                return size
        if above in _DOTTED:
            return max(1, len(names) - (names[-1] in _DOTTED[above]))
    return 1


def _key(node: Mapping[object, object], name: str) -> object:
    """The key that reads like the name: YAML has keys that are numbers."""
    return next((key for key in node if str(key) == name), name)


def _is_place(node: object, place: str) -> bool:
    return isinstance(node, list) and place.isdecimal() and int(place) < len(node)


def _points(spec: ScenarioSpec) -> Iterator[Point]:
    if not spec.runs:
        yield {}
    for block in spec.runs:
        for values in product(*block.values()):
            yield dict(zip(block, values, strict=True))
