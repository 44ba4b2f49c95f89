"""What a KV slot and an embedding hold, as short digests: tags.

The tag of a position stands for all that its KV content depends on: the tag before it, its token, and the embeddings that are
spliced in there. Two positions have equal tags only when their KV content is equal, so reuse of a wrong block, a stale embedding
or a wrong payload shows as a difference of tags, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from hashlib import blake2b

from epdsim.core.items import MediaFeature, MediaItem, PlaceholderRange
from epdsim.core.positions import MissingFieldError, PositionLayout, PositionScheme, lay_out, spans_from_features
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun, joined_prompt
from epdsim.core.request import Request, StreamingUpdate
from epdsim.core.strip import payload_kind

NOTHING = b""
"""The tag of a slot that was never written."""


def digest(*parts: object) -> bytes:
    """Eight bytes for a tuple of values with a stable `repr`."""
    return blake2b(repr(parts).encode(), digest_size=8).digest()


def is_payload(item: MediaItem | None) -> bool:
    """Whether an encoder can run on what is there: a payload, or the address of one."""
    return payload_kind(item) in {"full", "address"}


def item_content(feature: MediaFeature) -> bytes:
    """What an encoder makes of the item: its fields in any order; the identifier alone when it has no payload."""
    if feature.data is None or not is_payload(feature.data):
        return digest("of", feature.identifier)
    return digest(*sorted((name, repr(one.data)) for name, one in feature.data.fields.items()))


class TrueRequest:
    """A request as its sender meant it, with the tags and positions that a right computation gives.

    Args:
        request: With full payloads.
        scheme: Positions of the model.

    Attributes:
        outputs: Tokens that it has yielded so far.
        contents: What the encoder should make of each item.
        layout: Right positions.
    """

    __slots__ = ("_media", "_output_base", "_scheme", "_tags", "contents", "layout", "outputs", "request")

    def __init__(self, request: Request, scheme: PositionScheme) -> None:
        self.request = request
        self.outputs: list[int] = []
        self.contents: list[bytes] = []
        self.layout = _right_layout(request, scheme)
        self._scheme = scheme
        self._output_base = 0
        self._tags: list[bytes] = []
        self._media: dict[int, list[tuple[bytes, int]]] = {}
        self._add_media(request.mm_features)

    def _add_media(self, features: Sequence[MediaFeature]) -> None:
        for feature in features:
            content = item_content(feature)
            self.contents.append(content)
            for position, index in embed_places(feature):
                self._media.setdefault(position, []).append((content, index))

    def keep_outputs(self, count: int) -> None:
        """Forget all output but the first `count` tokens of the turn."""
        del self.outputs[count:]
        del self._tags[self.num_tokens :]

    def grow(self, update: StreamingUpdate) -> None:
        """Go on with a session's next input, behind the output that is kept."""
        prompt, base = self.request.prompt, self.num_tokens
        kept: TokenPrompt | RunPrompt = TokenPrompt(self.outputs)
        if not isinstance(prompt, TokenPrompt):
            kept = RunPrompt([TokenRun(("output", self.request.request_id), self._output_base, len(self.outputs))])
        self._output_base += len(self.outputs) + 1
        added = [feature.moved(base) for feature in update.mm_features]
        self.request = replace(
            self.request,
            prompt=joined_prompt(joined_prompt(prompt, kept), update.prompt),
            max_tokens=update.max_tokens,
            mm_features=(*self.request.mm_features, *added),
            num_remote_tokens=0,
            stop_token_ids=update.stop_token_ids,
        )
        self.outputs.clear()
        self._add_media(added)
        self.layout = _right_layout(self.request, self._scheme)

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return self.request.prompt.num_tokens + len(self.outputs)

    def tags(self, end: int) -> list[bytes]:
        """Tags of positions `[0, end)`; all their tokens are known. The list may be longer; it is not to be changed."""
        tags = self._tags
        tag = tags[-1] if tags else digest("adapter", self.request.adapter)
        for position in range(len(tags), end):
            tag = digest(tag, self._token(position), self._media.get(position, ()))
            tags.append(tag)
        return tags

    def _token(self, position: int) -> Hashable:
        prompt = self.request.prompt
        place = position - prompt.num_tokens
        if place < 0:
            return prompt.slice_key(position, position + 1)
        if isinstance(prompt, TokenPrompt):
            return (self.outputs[place],)
        return (TokenRun(("output", self.request.request_id), self._output_base + place, 1),)


def embed_places(feature: MediaFeature) -> list[tuple[int, int]]:
    """Position in the prompt and row of the embedding, for every embedding of an item."""
    span = feature.position
    mask = span.is_embed
    places = range(span.length) if mask is None else [at for at in range(span.length) if mask[at]]
    return [(span.offset + at, index) for index, at in enumerate(places)]


def spliced(span: PlaceholderRange, start: int, end: int, num_rows: int) -> tuple[list[int], list[int]]:
    """Where in the prompt tokens `[start, end)` of a span take embeddings, and which rows of an entry of `num_rows`."""
    mask = span.is_embed
    places = [place for place in range(start, end) if mask is None or mask[place - span.offset]]
    first = span.embeds_before(start - span.offset)
    return places, list(range(first, min(first + len(places), num_rows)))


def held_layout(scheme: PositionScheme, num_tokens: int, features: Sequence[MediaFeature]) -> PositionLayout:
    """Positions as a worker computes them of what it was sent.

    Raises:
        MissingFieldError: A field that positions read is not there.
    """
    return lay_out(scheme, num_tokens, spans_from_features(scheme, features))


def _right_layout(request: Request, scheme: PositionScheme) -> PositionLayout | None:
    """Right positions; None when the request itself lacks what they read, so that nobody could know them."""
    try:
        return held_layout(scheme, request.prompt.num_tokens, request.mm_features)
    except MissingFieldError:
        return None
