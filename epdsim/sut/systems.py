"""Systems under test behind one protocol each: what a property run asks of the functions of the protocol and of an engine.

A system has either or both. Those of epdsim are the model in any dialect (`reference`) and the installed vLLM (`vllm`); others
register under the entry-point group `epdsim.sut`: a name, and a function from a dialect's name (or None) to a `SystemUnderTest`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from epdsim.core.errors import EpdsimError, InputError
from epdsim.core.items import MediaFeature, MediaItem
from epdsim.core.records import record
from epdsim.core.releases.dialects import named
from epdsim.core.rules import Dialect
from epdsim.core.slots import Rendered
from epdsim.sut.broadcast_cases import BroadcastUnderTest
from epdsim.sut.caches import CachesUnderTest, ReferenceCaches
from epdsim.sut.family_cases import MediaUnderTest, ReferenceMedia
from epdsim.sut.probe_identity import IdentityUnderTest, ReferenceIdentity
from epdsim.sut.probe_positions import PositionsUnderTest, ReferencePositions
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_play import Engine, Play
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.sessions import ReferenceSessions, SessionsUnderTest

GROUP = "epdsim.sut"
"""Entry-point group of systems of others."""

EngineUnderTest = Engine
"""An engine: `add`, `schedule` (a step), `samples`, `told`, `update` (feed), `abort`, `reset`, `queues`; pressure preempts."""


class ProtocolUnderTest(Protocol):
    """The protocol's functions. Each refuses by `InputError`; any other exception is a failure of the system."""

    def extract(self, rendered: Rendered, declared: Callable[[str], Collection[str]]) -> Mapping[str, Any] | None:
        """Render's tables as the JSON object `features`; None for a prompt without media."""
        ...

    def validate(self, body: Mapping[str, Any]) -> None:
        """Judge the JSON body of a generate request; InputError is a client error."""
        ...

    def merge(self, features: Mapping[str, Any]) -> Sequence[MediaFeature]:
        """The items that a receiver makes of the JSON object `features`, in order of offset."""
        ...

    def strip(
        self, features: Sequence[MediaFeature], num_computed_tokens: int, *, reads_fields: bool
    ) -> Sequence[MediaFeature]:
        """What of a request's items to send at an admission; `reads_fields` under M-RoPE and XD-RoPE."""
        ...

    def encode(self, item: MediaItem) -> str:
        """The blob of an item."""
        ...

    def decode(self, blob: str) -> MediaItem:
        """The item of a blob."""
        ...


@record
class SystemUnderTest:
    """What a property run runs against.

    Attributes:
        name: As on the command line.
        version: Dialect or release.
        release: vLLM's release that workloads name, for example `"0.32.0"`.
        engine: Builds an engine for a workload and what is beyond its EC connector; None when it has none.
        protocol: Its functions of the protocol; None when it has none.
        caches: Its media caches; None when it has none.
        positions: Its positions; None when it computes none.
        identity: Its hashes and keys; None when it computes none.
        sessions: Reads what sessions of its engine hold; None when nothing does.
        broadcast: How plans come to ranks; None when it has none.
        media: Which fields of its media travel as metadata; None when it has no media.
    """

    name: str
    version: str
    release: str
    engine: Callable[[RecordedWorkload, FarSide], EngineUnderTest[Any]] | None = None
    protocol: ProtocolUnderTest | None = None
    caches: CachesUnderTest | None = None
    positions: PositionsUnderTest | None = None
    identity: IdentityUnderTest | None = None
    sessions: SessionsUnderTest | None = None
    media: MediaUnderTest | None = None
    broadcast: BroadcastUnderTest | None = None

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    def play(self, workload: RecordedWorkload) -> Play[Any]:
        """A workload on the engine."""
        assert self.engine is not None, "the caller has looked"
        return Play(workload, self.engine)


MakeSystem = Callable[[str | None], SystemUnderTest]


def reference(dialect: str | None = None) -> SystemUnderTest:
    """The model: the ideal, or a release by its dialect."""
    return reference_of(named(dialect or "ideal"))


def reference_of(rules: Dialect) -> SystemUnderTest:
    """The model with any rules."""
    from epdsim.sut.broadcast import ReferenceBroadcast  # noqa: PLC0415 - as below
    from epdsim.sut.reference import ReferenceProtocol, reference_engine  # noqa: PLC0415 - torch and pydantic load slowly

    release = rules.name.partition(":")[0].removeprefix("vllm-") if rules.replacements else "0.32"
    return SystemUnderTest(
        "reference",
        rules.name,
        f"{release}.0",
        reference_engine(rules),
        ReferenceProtocol(rules),
        ReferenceCaches(rules),
        ReferencePositions(rules),
        ReferenceIdentity(rules),
        ReferenceSessions(),
        ReferenceMedia(rules),
        ReferenceBroadcast(),
    )


def vllm(dialect: str | None = None) -> SystemUnderTest:
    """The installed release of vLLM."""
    from epdsim.sut.vllm import (  # noqa: PLC0415 - as above
        VllmSessions,
        installed_version,
        vllm_broadcast,
        vllm_caches,
        vllm_engine,
        vllm_identity,
        vllm_media,
        vllm_positions,
        vllm_protocol,
    )

    if dialect is not None:
        raise InputError(
            f"dialect {dialect!r} of vllm", "a real release has no dialect", "install the release that is meant"
        )
    version = installed_version()
    return SystemUnderTest(
        "vllm",
        version,
        version,
        vllm_engine(),
        vllm_protocol(),
        vllm_caches(),
        vllm_positions(),
        vllm_identity(),
        VllmSessions(),
        vllm_media(),
        vllm_broadcast(),
    )


_OWN: Mapping[str, MakeSystem] = {"reference": reference, "vllm": vllm}


def find_system(name: str, dialect: str | None = None) -> SystemUnderTest:
    """A system by name: one of epdsim's own, or one that another package registers.

    Raises:
        InputError: No such system, it is not installed, it cannot be made, or it has no such dialect.
    """
    make = _OWN.get(name)
    if make is None:
        others = {one.name: one for one in entry_points(group=GROUP)}
        if name not in others:
            raise InputError(
                f"system {name!r}",
                f"the systems are {', '.join([*_OWN, *sorted(others)])}",
                f"register another one under the entry-point group {GROUP}",
            )
        return _made_by(others[name], dialect)
    return make(dialect)


def _made_by(entry: EntryPoint, dialect: str | None) -> SystemUnderTest:
    """A system of another package."""
    told, remedy = f"system {entry.name!r}", "ask the package that registers it"
    try:
        made: object = entry.load()(dialect)
    except EpdsimError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())
        raise InputError(told, f"it cannot be made ({type(error).__name__}: {why})", remedy) from error
    if not isinstance(made, SystemUnderTest):
        raise InputError(told, f"it gives a {type(made).__name__} and no SystemUnderTest", remedy)
    return made
