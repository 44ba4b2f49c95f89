"""The model as a system under test: its own protocol functions and its scheduler, in any dialect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from epdsim.core.items import MediaFeature, MediaItem
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.slots import Rendered, extract_features, features_of
from epdsim.core.strip import strip_covered
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_model import ModelEngine
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.schedule_workers import WorkedModel, is_workable
from epdsim.wire import decode_blob, encode_blob, features_from_json, features_to_json, validate_request


class ReferenceProtocol:
    """The protocol's functions as the model has them."""

    def __init__(self, dialect: Dialect = IDEAL) -> None:
        self._dialect = dialect

    def extract(self, rendered: Rendered, declared: Callable[[str], Collection[str]]) -> Mapping[str, Any] | None:
        """Render's tables."""
        tables = extract_features(rendered, declared, dialect=self._dialect)
        return None if tables is None else features_to_json(tables)

    def validate(self, body: Mapping[str, Any]) -> None:
        """Judge a request."""
        validate_request(body, self._dialect)

    def merge(self, features: Mapping[str, Any]) -> Sequence[MediaFeature]:
        """Items of tables."""
        return features_of(features_from_json(features, dialect=self._dialect), self._dialect)

    def strip(
        self, features: Sequence[MediaFeature], num_computed_tokens: int, *, reads_fields: bool
    ) -> Sequence[MediaFeature]:
        """What to send at an admission."""
        return strip_covered(features, num_computed_tokens, uses_mrope=reads_fields, dialect=self._dialect)

    def encode(self, item: MediaItem) -> str:
        """The blob of an item."""
        return encode_blob(item)

    def decode(self, blob: str) -> MediaItem:
        """The item of a blob."""
        return decode_blob(blob)


def reference_engine(dialect: Dialect = IDEAL) -> Callable[[RecordedWorkload, FarSide], ModelEngine]:
    """Builds the model's scheduler, with its worker behind it where the worker can take what happens."""

    def make(workload: RecordedWorkload, far: FarSide) -> ModelEngine:
        kind = WorkedModel if is_workable(workload) else ModelEngine
        return kind(workload, far, dialect)

    return make
