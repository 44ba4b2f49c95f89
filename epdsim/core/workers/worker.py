"""A worker: what a model runner keeps between steps, and what it would do wrong with what it is told.

It takes each step's broadcast, in the order of vLLM's runners: requests that ended go, embeddings that the plan names go, new and
known requests are taken, the encoder runs, embeddings are gathered, KV is written and read. No tensor is computed: KV slots and
embeddings hold tags (`core.workers.content`), and the token that a request yields follows from the tag of its last position, as
greedy decoding's would, so the outcome of a request is known without any scheduler (`undisturbed`).

    worker = Worker(config)
    worker.add_request(request)
    step = worker.execute(plan)
    step.sampled, step.violations

Properties judged: STRIP-AVAIL, STRIP-META, ENC-HIT, ENC-KEY, SPLICE-EQ, POS-EQ, KEY-INJ, TOK-CONS, SHM-SAFE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from epdsim.core.caches.shm_ring import StaleHandleError
from epdsim.core.items import MediaFeature
from epdsim.core.plan import CachedRequestData, NewRequestData, StepPlan
from epdsim.core.positions import ONE_D, MissingFieldError, PositionLayout, PositionScheme
from epdsim.core.request import Request, StreamingUpdate
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.slots import merge_slot
from epdsim.core.strip import payload_kind
from epdsim.core.workers.content import NOTHING, TrueRequest, digest, held_layout, is_payload, item_content, spliced
from epdsim.core.workers.loads import ExternalKv, embedding_asked
from epdsim.core.workers.records import (
    STYLES,
    Embedding,
    EncoderRun,
    HeldRequest,
    PayloadReceiver,
    Splice,
    StepNotes,
    WorkerStep,
)


def token_of(tag: bytes) -> int:
    """The token that follows a position: one of two, so that outputs of different requests often share blocks."""
    return tag[0] % 2 + 1


def undisturbed(
    request: Request, num_tokens: int | None = None, sample: Callable[[bytes], int] = token_of
) -> list[int]:
    """The output of a request that nothing ever happens to (RECOMP-EQ).

    Args:
        request: With full payloads.
        num_tokens: Output tokens, `max_tokens` when not said.
        sample: The token of a tag.
    """
    true = TrueRequest(request, ONE_D)
    for _ in range(request.max_tokens if num_tokens is None else num_tokens):
        true.outputs.append(sample(true.tags(true.num_tokens)[true.num_tokens - 1]))
    return true.outputs


class Worker:
    """One rank of an engine.

    Args:
        config: The engine's: block size, generation of the runner, and whether it only encodes (EC producer), so that nothing is
            gathered or read.
        scheme: Positions of the model; 1-D ones read nothing.
        receiver: Puts payloads in place of shared-memory addresses; None where payloads travel in the broadcast.
        ec_store: Embeddings that the EC store holds, by identifier; one that is not there is what its request asks for.
        sample: The token that follows a tag.

    Attributes:
        requests: What it keeps, by request.
        embeddings: Its encoder cache.
    """

    __slots__ = (
        "_block_size",
        "_ec_store",
        "_external",
        "_may_go_back",
        "_only_encodes",
        "_receiver",
        "_sample",
        "_scheme",
        "_slots",
        "_style",
        "_true",
        "embeddings",
        "requests",
    )

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        scheme: PositionScheme = ONE_D,
        receiver: PayloadReceiver | None = None,
        ec_store: Mapping[str, Embedding] = MappingProxyType({}),
        sample: Callable[[bytes], int] = token_of,
    ) -> None:
        self._style = STYLES[config.model_runner]
        self._only_encodes = config.ec_role == "producer"
        self._block_size = config.block_size
        self._scheme = scheme
        self._receiver = receiver
        self._ec_store = ec_store
        self._sample = sample
        self._slots: dict[int, list[bytes]] = {}
        self._external = ExternalKv(self._slots, config.block_size)
        self._may_go_back: set[str] = set()
        self._true: dict[str, TrueRequest] = {}
        self.requests: dict[str, HeldRequest] = {}
        self.embeddings: dict[str, Embedding] = {}

    def add_request(self, request: Request) -> None:
        """Say what a request is before a plan speaks of it: its tokens, which plans do not carry, and its true payloads."""
        self._true[request.request_id] = TrueRequest(request, self._scheme)

    def keep_outputs(self, request_id: str, count: int) -> None:
        """Say that of the output of a request, or of a session's turn, only the first `count` tokens count.

        The last token of a session's turn does not, nor does what a scheduler drops when it is reset.
        """
        self._true[request_id].keep_outputs(count)

    def add_update(self, update: StreamingUpdate) -> None:
        """Say that a session, of whose turn the output is kept that counts, goes on with its next input."""
        self._true[update.request_id].grow(update)

    def outputs(self, request_id: str) -> list[int]:
        """Tokens that a request has yielded, a session in its present turn."""
        return self._true[request_id].outputs

    def reset_encoder_cache(self) -> None:
        """Drop all embeddings: the weights have changed."""
        self.embeddings.clear()

    def receive(self, request_id: str, lost: Collection[int] = ()) -> None:
        """A load between steps is over; without the blocks that are lost."""
        load = self._external.end(request_id)
        self._external.fill(load, self._true[request_id].tags(load.end), lost)

    def hear_lost(self, lost: Collection[int]) -> None:
        """The scheduler hears that loads did not fill some blocks; whoever holds one may be sent back behind it."""
        tables = {name: held.block_ids for name, held in self.requests.items()}
        self._may_go_back.update(self._external.hear(lost, tables))

    def execute(
        self,
        plan: StepPlan,
        lost: Collection[int] = (),
        sampled: Mapping[str, Sequence[int]] | None = None,
    ) -> WorkerStep:
        """Run a step.

        Args:
            plan: What the scheduler says.
            lost: Blocks that loads within the step do not fill.
            sampled: The tokens that it yields where that is known, as in a recording; by default they follow from the tags.
        """
        notes = StepNotes(plan.step)
        for load in plan.kv_loads:
            if load.is_async:
                self._external.begin(load)
            else:
                self._external.fill(load, self._true[load.request_id].tags(load.end), lost)
        self._drop(plan)
        for new in plan.new:
            self._take_new(notes, new)
        for row in plan.cached:
            self._take_cached(notes, row)
        self._load(plan)
        for name, inputs in plan.scheduled_encoder_inputs.items():
            self._encode(notes, name, inputs)
        chunks = {
            name: (held.num_computed_tokens, held.num_computed_tokens + count)
            for name, count in plan.num_scheduled_tokens.items()
            if (held := self.requests.get(name)) is not None
        }
        if not self._only_encodes:
            for name, (start, end) in chunks.items():
                self._gather(notes, name, start, end)
                self._check_positions(notes, name, start, end)
        for name, (start, end) in chunks.items():
            self._write(notes, name, start, end)
        if not self._only_encodes:
            for name, (start, end) in chunks.items():
                self._read(notes, name, start, end)
        yielded = self._finish(plan, chunks, sampled)
        return WorkerStep(yielded, notes.encoded, notes.violations, notes.runs, notes.splices)

    def _drop(self, plan: StepPlan) -> None:
        gone = {*plan.finished, *plan.preempted} if self._style.forgets_preempted else plan.finished
        for name in sorted(gone):
            self.requests.pop(name, None)
        if self._receiver is not None:
            for name in plan.finished:
                self._receiver.ended(name)
        for identifier in plan.free_encoder_mm_hashes:
            self.embeddings.pop(identifier, None)

    def _take_new(self, notes: StepNotes, new: NewRequestData) -> None:
        name = new.request_id
        features = list(new.mm_features)
        if self._receiver is not None:
            try:
                features = list(self._receiver.receive(name, features))
            except StaleHandleError as error:
                notes.note("SHM-SAFE", name, str(error))
        features = self._known_features(notes, new) + features
        held = HeldRequest(features, list(new.block_ids), new.num_computed_tokens)
        held.layout = self._positions(notes, name, new.num_prompt_tokens, features)
        self.requests[name] = held
        true = self._true[name]
        if new.num_prompt_tokens not in {true.num_tokens, true.request.prompt.num_tokens}:
            notes.note("TOK-CONS", name, f"comes with {new.num_prompt_tokens} tokens and has {true.num_tokens}")

    def _known_features(self, notes: StepNotes, new: NewRequestData) -> list[MediaFeature]:
        """The items of a session that goes on which were sent before."""
        if not new.num_known_features:
            return []
        held = self.requests.get(new.request_id)
        there = [] if held is None else held.features[: new.num_known_features]
        if len(there) < new.num_known_features:
            what = f"is not sent its first {new.num_known_features} items, of which {len(there)} are known"
            notes.note("STRIP-AVAIL", new.request_id, what)
            missing = self._true[new.request_id].request.mm_features[len(there) : new.num_known_features]
            there += [replace(feature, data=None) for feature in missing]
        return there

    def _take_cached(self, notes: StepNotes, row: CachedRequestData) -> None:
        held = self.requests.get(row.request_id)
        if held is None:
            notes.note("TOK-CONS", row.request_id, "goes on, but the worker does not know it")
            return
        if row.resumed:
            held.block_ids = list(row.new_block_ids or ())
            held.num_computed_tokens = row.num_computed_tokens
        else:
            held.block_ids += row.new_block_ids or ()
        goes_back = row.num_computed_tokens < held.num_computed_tokens and row.request_id in self._may_go_back
        self._may_go_back.discard(row.request_id)
        if goes_back:
            held.num_computed_tokens = row.num_computed_tokens
        if held.num_computed_tokens != row.num_computed_tokens:
            gap = f"goes on at token {row.num_computed_tokens}, computed are {held.num_computed_tokens}"
            notes.note("TOK-CONS", row.request_id, gap)
            held.num_computed_tokens = row.num_computed_tokens
        for index, update in row.mm_updates.items():
            there = held.features[index]
            held.features[index] = replace(there, data=merge_slot(there.data, update.data))

    def _positions(
        self, notes: StepNotes, name: str, num_tokens: int, features: list[MediaFeature]
    ) -> PositionLayout | None:
        if self._true[name].layout is None:
            return None  # nobody could know them
        try:
            return held_layout(self._scheme, num_tokens, features)
        except MissingFieldError as error:
            notes.note("STRIP-META", name, f"cannot have its positions: {error.value}, {error.rule}")
            return None

    def _load(self, plan: StepPlan) -> None:
        for identifier in plan.ec_loads:
            stored = self._ec_store.get(identifier)
            self.embeddings[identifier] = embedding_asked(plan, identifier, self._true) if stored is None else stored

    def _encode(self, notes: StepNotes, name: str, inputs: Sequence[int]) -> None:
        held = self.requests.get(name)
        if held is None:
            return
        for index in inputs:
            feature = held.features[index]
            if feature.identifier in self.embeddings and not self._style.encodes_again:
                continue
            has_payload, held_kind = self._has_payload(name, index), payload_kind(feature.data)
            notes.runs.append(EncoderRun(name, index, held_kind if has_payload or held_kind != "full" else "metadata"))
            if not has_payload:
                kind = "no payload" if feature.data is None else f"only {sorted(feature.data.fields)}"
                notes.note("STRIP-AVAIL", name, f"is to encode item {index} ({feature.identifier}) and has {kind}")
                continue
            self.embeddings[feature.identifier] = Embedding(item_content(feature), feature.position.num_embeds)
            notes.encoded.append(feature.identifier)

    def _has_payload(self, name: str, index: int) -> bool:
        """Whether the worker holds every field of an item that its encoder needs."""
        data, full = self.requests[name].features[index].data, self._true[name].request.mm_features[index].data
        if data is None or not is_payload(data) or data.is_address:
            return False
        return full is None or full.is_address or data.fields.keys() >= full.fields.keys()

    def _gather(self, notes: StepNotes, name: str, start: int, end: int) -> None:
        """Take the embeddings that a chunk splices in."""
        true = self._true[name]
        for index, feature in enumerate(true.request.mm_features):
            span = feature.position
            low, high = max(start, span.offset), min(end, span.end)
            if low >= high:
                continue
            first, past = span.embeds_before(low - span.offset), span.embeds_before(high - span.offset)
            if first == past:
                continue
            there = self.embeddings.get(feature.identifier)
            num_rows, is_own = (
                (None, True) if there is None else (there.num_embeds, there.content == true.contents[index])
            )
            places, rows = spliced(span, low, high, num_rows or 0)
            notes.splices.append(Splice(name, index, low, high, places, rows, num_rows, is_own))
            if there is None:
                what = f"gathers item {index} ({feature.identifier}), which is not there"
                notes.note("ENC-HIT", name, what, spoils=True)
            elif there.num_embeds != span.num_embeds:
                what = f"item {index} ({feature.identifier}) needs {span.num_embeds} embeddings, the entry has {there.num_embeds}"
                notes.note("SPLICE-EQ", name, what, spoils=True)
            elif not is_own:
                what = f"gathers for item {index} ({feature.identifier}) an embedding of something else"
                notes.note("ENC-KEY", name, what, spoils=True)

    def _check_positions(self, notes: StepNotes, name: str, start: int, end: int) -> None:
        right, layout = self._true[name].layout, self.requests[name].layout
        if right is not None and layout is not None and layout.columns(start, end) != right.columns(start, end):
            notes.note("POS-EQ", name, f"has wrong positions for tokens [{start}, {end})", spoils=True)

    def _write(self, notes: StepNotes, name: str, start: int, end: int) -> None:
        """Write the KV of a chunk."""
        true, held, size = self._true[name], self.requests[name], self._block_size
        if end > true.num_tokens:
            notes.note("TOK-CONS", name, f"computes token {end - 1}, known are {true.num_tokens}")
            end = true.num_tokens
        if end > len(held.block_ids) * size:
            notes.note("KV-CONS", name, f"has {len(held.block_ids)} blocks of {size} for {end} tokens")
            end = len(held.block_ids) * size
        tags = self._written(notes, name, start, end)
        for index in range(start // size, -(-end // size)):
            low, high = max(start, index * size), min(end, (index + 1) * size)
            if low == index * size:
                self._external.wrote(held.block_ids[index])
            self._slot(held, index)[low - index * size : high - index * size] = tags[low - start : high - start]

    def _written(self, notes: StepNotes, name: str, start: int, end: int) -> list[bytes]:
        right = self._true[name].tags(end)[start:end]
        if name not in notes.spoilt:
            return right
        return [digest(tag, "spoilt", notes.spoilt[name]) for tag in right]

    def _read(self, notes: StepNotes, name: str, start: int, end: int) -> None:
        """Read the KV of everything before and in a chunk; a chunk that reads wrong KV writes wrong KV."""
        true, held, size = self._true[name], self.requests[name], self._block_size
        end = min(end, true.num_tokens, len(held.block_ids) * size)
        tags = true.tags(end)
        for index in range(-(-end // size)):
            low, high = index * size, min(end, (index + 1) * size)
            there = self._slot(held, index)[: high - low]
            if there == tags[low:high] or name in notes.spoilt:
                continue
            if self._external.is_excused(held.block_ids):
                notes.spoilt[name] = "KV that was not loaded, which nobody knows yet"
                self._write(notes, name, start, end)
                continue
            at = next(low + i for i, tag in enumerate(there) if tag != tags[low + i])
            found = "nothing" if there[at - low] == NOTHING else "the KV content of something else"
            what = f"reads {found} at token {at} (block {held.block_ids[index]})"
            notes.note("KEY-INJ", name, what, spoils=True)
            self._write(notes, name, start, end)

    def _finish(
        self, plan: StepPlan, chunks: Mapping[str, tuple[int, int]], given: Mapping[str, Sequence[int]] | None
    ) -> dict[str, list[int]]:
        sampled: dict[str, list[int]] = {name: [] for name in plan.num_scheduled_tokens}
        for name, (_, end) in chunks.items():
            held, true = self.requests[name], self._true[name]
            held.num_computed_tokens = end
            if given is not None:
                sampled[name] = list(given.get(name, ()))
            elif name in plan.samples and 0 < end <= min(true.num_tokens, len(held.block_ids) * self._block_size):
                block, place = divmod(end - 1, self._block_size)
                sampled[name] = [self._sample(self._slot(held, block)[place])]
            true.outputs += sampled[name]
        return sampled

    def _slot(self, held: HeldRequest, index: int) -> list[bytes]:
        """The tags in block `index` of a request's table."""
        return self._slots.setdefault(held.block_ids[index], [NOTHING] * self._block_size)
