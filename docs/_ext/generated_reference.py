"""Reference pages made from the code at build time, so that they cannot go stale.

A page says where with a line of its own, for example `<!-- generated: rules -->`; each name is a function below that returns
Markdown.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

import epdsim.core
import epdsim.cost
import epdsim.cost.efficiency
from epdsim.cli.program import program
from epdsim.core.releases.dialects import DEVIATIONS
from epdsim.core.rules import rules as declared_rules
from epdsim.events.schema import AnyEvent, Event
from epdsim.media import families as family_names
from epdsim.report.metrics import Distribution, RunMetrics
from epdsim.scenario.schema import ScenarioSpec
from epdsim.spec import FAMILIES, Property
from epdsim.workload.kinds import Kinds, Section

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
_PATHS_IN_HEADING = 3


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def summary(docstring: str | None) -> str:
    """A docstring up to its first section."""
    text = inspect.cleandoc(docstring or "")
    return re.split(r"\n(?:Attributes|Args|Raises|Returns):\n", text)[0].strip()


def attributes(owner: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each attribute or argument."""
    told: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        text = inspect.cleandoc(one.__doc__ or "") + "\n"
        for section in re.findall(r"\n(?:Attributes|Args):\n((?:    .*\n)+)", text):
            for name, first, rest in re.findall(r"^    (\w+): (.*)((?:\n {5,}.*)*)", section, re.MULTILINE):
                told[name] = " ".join([first, *rest.split()])
    return told


def _members(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation, without None; one that is annotated itself keeps its limits."""
    if get_origin(annotation) in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from _members(one)
    elif get_origin(annotation) is Annotated and (named := list(_named(get_args(annotation)[1:]))):
        yield from named
    elif get_origin(annotation) is Annotated and get_origin(get_args(annotation)[0]) in (Union, types.UnionType):
        yield from _members(get_args(annotation)[0])
    elif annotation is not type(None):
        yield annotation


def _named(metadata: Iterable[Any]) -> Iterator[type[BaseModel]]:
    """The models that are named by their places, and imported when they are met."""
    for one in metadata:
        if isinstance(one, Kinds):
            yield from one.models().values()
        elif isinstance(one, Section):
            yield one.model()


def _annotation(field: FieldInfo) -> Any:
    """What a key may be: the models that the schema names by their places, or what it says."""
    named = tuple(_named(field.metadata))
    return Union[named] if named else field.annotation  # noqa: UP007 - made of a list


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every model that an annotation speaks of."""
    for one in _members(annotation):
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield one
        elif get_origin(one) is Annotated:
            yield from _models(get_args(one)[0])
        elif get_origin(one) is not Literal:
            for inner in get_args(one):
                yield from _models(inner)


def type_text(annotation: Any) -> str:
    """An annotation in the words of a scenario file; models become links."""
    return " or ".join(dict.fromkeys(map(_member_text, _members(annotation)))) or "null"


def _member_text(one: Any) -> str:
    origin, args = get_origin(one), [inner for inner in get_args(one) if inner is not Ellipsis]
    if origin is Annotated:
        return " ".join(filter(None, [type_text(args[0]), _limits(args[1:])]))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if isinstance(one, type) and issubclass(one, BaseModel):
        return f"[{_kind(one) or 'section'}](#scenario-{one.__name__.lower()})"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of {type_text(args[0])} to {type_text(args[1])}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {', '.join(dict.fromkeys(map(type_text, args)))}"
    plain = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "anything"}
    return plain.get(one, getattr(one, "__name__", str(one)).lower())


def _kind(model: type[BaseModel]) -> str:
    field = model.model_fields.get("kind")
    return f"`{get_args(field.annotation)[0]}`" if field is not None else ""


def _limits(metadata: Sequence[Any]) -> str:
    marks = {"Ge": "≥", "Gt": ">", "Le": "≤", "Lt": "<"}
    plain = [inner for one in metadata for inner in (one.metadata if isinstance(one, FieldInfo) else [one])]
    told = [
        f"{marks[name]} {getattr(one, name.lower()):,.15g}" for one in plain if (name := type(one).__name__) in marks
    ]
    return ", ".join(told + ["not empty" for one in plain if getattr(one, "min_length", 0)])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()  # type: ignore[misc, call-arg]
    return "its defaults" if isinstance(value, BaseModel) else plain_text(value)


def plain_text(value: object) -> str:
    """A default as a scenario file would have it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if value in ("", (), [], {}):
        return "empty"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def scenario_file() -> str:
    """Every key of a scenario file, section by section in the order in which the schema names them."""
    paths: dict[type[BaseModel], list[str]] = {}

    def walk(model: type[BaseModel], path: str) -> None:
        known = paths.setdefault(model, [])
        if path not in known:
            known.append(path)
        if len(known) == 1:
            for name, field in model.model_fields.items():
                for inner in _models(_annotation(field)):
                    walk(inner, f"{path}.{name}".removeprefix("."))

    walk(ScenarioSpec, "")
    return "\n".join(_section(model, where) for model, where in paths.items())


def _section(model: type[BaseModel], paths: Sequence[str]) -> str:
    places = ", ".join(f"`{path}`" for path in paths) if len(paths) <= _PATHS_IN_HEADING else model.__name__
    title = "The top" if paths == [""] else places
    if _kind(model):
        title += f", kind {_kind(model)}"
    told = _referred(model) | attributes(model)
    rows = [
        [
            f"`{name}`",
            type_text(_annotation(field)) + (f" {limits}" if (limits := _limits(field.metadata)) else ""),
            _default(field),
            told.get(name, ""),
        ]
        for name, field in model.model_fields.items()
        if name != "kind"
    ]
    body = table(["key", "value", "default", "meaning"], rows) if rows else ""
    return f"(scenario-{model.__name__.lower()})=\n## {title}\n\n{summary(model.__doc__)}\n\n{body}"


def _referred(model: type[BaseModel]) -> dict[str, str]:
    """What the cost models that a description names say of their arguments."""
    told: dict[str, str] = {}
    for name in re.findall(r"`(\w+)`", summary(model.__doc__)):
        found = getattr(epdsim.cost, name, None) or getattr(epdsim.cost.efficiency, name, None)
        told |= attributes(found) if isinstance(found, type) else {}
    return told


def figures() -> str:
    """What columns, published figures and claims can name."""
    told, hints = attributes(RunMetrics), get_type_hints(RunMetrics)
    behind = ", ".join(f"`.{one.name}`" for one in fields(Distribution))
    rows = []
    for name, hint in hints.items():
        form = "number"
        if Distribution in get_args(hint):
            form = f"mean, or {behind}"
        elif get_origin(hint) is Mapping:
            form = "sum, or one entry by `.name`"
        rows.append([f"`{name}`", form, told.get(name, "")])
    for name, one in vars(RunMetrics).items():
        if isinstance(one, property):
            rows.append([f"`{name}`", "number", summary(one.__doc__)])
    return table(["figure", "form", "meaning"], rows)


def rules() -> str:
    """The register of rules, by room."""
    for module in pkgutil.walk_packages(epdsim.core.__path__, "epdsim.core."):
        import_module(module.name)
    rows = [[f"`{rule.name}`", rule.statement, rule.source] for rule in declared_rules()]
    return table(["rule", "ideal", "source"], rows)


def core_modules() -> str:
    """A section for every module of the core."""
    names = (module.name for module in pkgutil.iter_modules(epdsim.core.__path__, "epdsim.core."))
    return "\n".join(f"## `{name}`\n\n```{{eval-rst}}\n.. automodule:: {name}\n```\n" for name in names)


def deviations() -> str:
    """What each release does in place of the ideal."""
    rows = []
    for row in DEVIATIONS:
        span = f"0.{row.first}" if row.first == row.last else f"0.{row.first} to 0.{row.last}"
        rows.append([f"`{row.rule.name}`", span, row.why])
    return table(["rule", "releases", "what they do instead"], sorted(rows))


def events() -> str:
    """Every kind of event with its fields."""
    shared = attributes(Event)
    told = "; ".join(f"`{name}`: {meaning.rstrip('.')}" for name, meaning in shared.items())
    parts = [f"Every event has these: {told}.\n"]
    for kind in get_args(AnyEvent):
        meanings, hints = attributes(kind), get_type_hints(kind)
        rows = [
            [f"`{one.name}`", type_text(hints[one.name]), _event_default(one), meanings.get(one.name, "")]
            for one in msgspec.structs.fields(kind)
            if one.name not in shared
        ]
        detail = " An event of detail: made only where a consumer asks, as `--events` does." if kind.is_detail else ""
        body = table(["field", "value", "default", "meaning"], rows) if rows else ""
        parts.append(f"## {kind.__name__}\n\n{summary(kind.__doc__)}{detail}\n\n{body}")
    return "\n".join(parts)


def _event_default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    return "always there" if field.default is msgspec.NODEFAULT else plain_text(field.default)


def properties() -> str:
    """The register of properties, group by group."""
    parts: list[str] = []
    for title, group in FAMILIES.values():
        parts.append(f"## {title}\n")
        parts += [_property(one) for one in group]
    return "\n".join(parts)


def _property(one: Property) -> str:
    """One entry: statement, reason, and what is known of its judging."""
    rows = [
        ["judged", _judged(one)],
        ["premise", one.sometimes],
        ["too little is wrong too", one.twin],
        ["evidence", "; ".join(one.evidence)],
        ["runs against", ", ".join(one.systems)],
        *([f"not against {system}", reason] for system, reason in one.exempt.items()),
    ]
    told = [f"* {name}: {text}" for name, text in rows if text]
    return f"### {one.id}\n\n{one.sentence}\n\n{one.why}\n\n" + "\n".join(told) + "\n"


def _judged(one: Property) -> str:
    if one.stands_as:
        return "by tests, which compare whole runs: " + ", ".join(f"`{test}`" for test in one.stands_as)
    return f"at level *{one.level}*" if one.monitor is not None else f"not yet: {one.not_judged}"


def families() -> str:
    """Names that `family` takes."""
    return ", ".join(f"`{name}`" for name in family_names()) + ".\n"


def cli() -> str:
    """The help of every verb, as the program prints it."""
    app = program()
    verbs = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    parts = []
    groups = [
        [group.name, command.name or command.callback.__name__]
        for group in app.registered_groups
        if group.name and group.typer_instance
        for command in group.typer_instance.registered_commands
        if command.callback
    ]
    for words in ([], *([verb] for verb in verbs), *groups):
        shown = CliRunner().invoke(app, [*words, "--help"], prog_name="epdsim", terminal_width=100)
        assert shown.exit_code == 0, shown.output
        title = " ".join(["epdsim", *words])
        parts.append(f"## `{title}`\n\n```text\n{shown.output.strip()}\n```\n")
    return "\n".join(parts)


GENERATED: Mapping[str, Callable[[], str]] = {
    "scenario-file": scenario_file,
    "figures": figures,
    "families": families,
    "properties": properties,
    "rules": rules,
    "core-modules": core_modules,
    "deviations": deviations,
    "events": events,
    "cli": cli,
}


def _fill(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = _MARK.sub(lambda mark: GENERATED[mark[1]](), source[0])


def mark_code(lines: list[str]) -> list[str]:
    """A docstring with its indented examples marked as code, which reStructuredText asks for and Markdown does not."""
    marked: list[str] = []
    last = ""
    for index, line in enumerate(lines):
        if line.startswith("    ") and last and not last[0].isspace() and not lines[index - 1]:
            marked += ["::", ""]
        marked.append(line)
        last = line or last
    return marked


def _mark_code(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    lines[:] = mark_code(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill the marks of every page as it is read, and prepare docstrings before napoleon sees them."""
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _mark_code, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
