"""What a model family makes of the media of a request: sizes become tokens."""

from __future__ import annotations

from epdsim.media import Family, RenderedMedia
from epdsim.workload.request import MediaRef


class Geometries:
    """What a family makes of pictures, clips and sounds; remembered by size.

    Args:
        family: The model family.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._found: dict[tuple[object, ...], RenderedMedia] = {}

    def of(self, ref: MediaRef) -> RenderedMedia:
        """What the family makes of a picture, clip or sound of this size.

        Raises:
            InputError: The family cannot take it.
        """
        key = (ref.modality, ref.height, ref.width, ref.num_frames, ref.duration_s, ref.num_tokens)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._render(ref)
        return found

    def _render(self, ref: MediaRef) -> RenderedMedia:
        if ref.modality == "audio":
            return self._family.audio(ref.duration_s)
        height, width = ref.height, ref.width
        if ref.num_tokens and not (height or width):
            height, width = self._family.image_size_for_tokens(ref.num_tokens)
        if ref.modality == "video":
            return self._family.video(ref.num_frames, height, width)
        return self._family.image(height, width)
