"""Cases of model families: items of some sizes, and which of their fields travel as metadata."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from epdsim.core.rules import IDEAL, Dialect
from epdsim.events import MetadataWeighed, Sink
from epdsim.media import Family, RenderedMedia, family, family_in

INSTANCE = "render"


class MediaSize(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item: a picture of some pixels, a clip of some frames, or a sound."""

    modality: str
    height: int = 0
    width: int = 0
    num_frames: int = 0
    duration_s: float = 0.0

    def rendered(self, checkpoint: Family) -> RenderedMedia:
        """What a checkpoint makes of it."""
        if self.modality == "image":
            return checkpoint.image(self.height, self.width)
        if self.modality == "video":
            return checkpoint.video(self.num_frames, self.height, self.width)
        return checkpoint.audio(self.duration_s)


class FamilyCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="family"):
    """Items of a checkpoint."""

    family: str
    items: list[MediaSize]


class MediaUnderTest(Protocol):
    """Which fields of rendered media travel as metadata. What render makes of a size is the model's answer for every system."""

    def metadata_fields(self, name: str, size: MediaSize) -> Collection[str] | None:
        """Names of the fields of an item of a checkpoint; None when the system does not have the checkpoint."""
        ...


class ReferenceMedia:
    """The model's, in a dialect."""

    def __init__(self, dialect: Dialect = IDEAL) -> None:
        self._dialect = dialect

    def metadata_fields(self, name: str, size: MediaSize) -> Collection[str] | None:
        """Names of fields."""
        checkpoint = family_in(self._dialect, name)
        item = size.rendered(checkpoint).item
        return item.subset(checkpoint.declared_metadata_fields(size.modality)).fields


def weigh(case: FamilyCase, media: MediaUnderTest, sink: Sink) -> None:
    """Render all items, and tell what their metadata weigh; nothing is told of a checkpoint that the system does not have."""
    checkpoint = family(case.family)
    for size in case.items:
        names = media.metadata_fields(case.family, size)
        if names is None:
            continue
        made = size.rendered(checkpoint)
        light = {name: field for name, field in made.item.fields.items() if name in names}
        metadata_bytes = sum(field.nbytes for field in light.values())
        told = case.family, size.modality, made.encoder_groups, made.encoder_patches
        sink(MetadataWeighed(0, INSTANCE, *told, metadata_bytes, made.payload_bytes, list(light)))
