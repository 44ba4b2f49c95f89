"""A request as a workload states it: when it arrives, what its prompt consists of, how much it generates.

It names content and sizes, never tokens or tensors. Render (the fleet's first stage) turns it into spans, fields and bytes with the
model family in force, so that one trace can be replayed on any model.
"""

from __future__ import annotations

from epdsim.core.prompt import TokenRun
from epdsim.core.records import record


@record
class MediaRef:
    """One picture, clip or sound of a prompt.

    Attributes:
        content: Identity of the bytes: two references with equal content and size are the same item everywhere.
        modality: `"image"`, `"video"` or `"audio"`.
        height: Pixels; 0 when only `num_tokens` is known or for audio.
        width: Pixels.
        num_frames: Frames of a clip before sampling; 1 for a picture.
        duration_s: Seconds of a clip or a sound.
        num_tokens: Placeholder tokens when the source states them in place of a size (ServeGen); 0 when the size says it.
        file_bytes: Size of the encoded file as the client sends it (JPEG, MP4); 0 for an estimate by the renderer.
    """

    content: str
    modality: str = "image"
    height: int = 0
    width: int = 0
    num_frames: int = 1
    duration_s: float = 0.0
    num_tokens: int = 0
    file_bytes: int = 0


Parts = tuple[TokenRun | MediaRef, ...]
"""A prompt in order: runs of text and media."""


@record
class WorkloadRequest:
    """One request of a workload.

    Attributes:
        request_id: Unique in the workload.
        arrival_ms: Since the start of the workload, non-decreasing over it.
        parts: The prompt in order: runs of text and media.
        output_tokens: Tokens it generates, at least 1.
        session_id: Empty, or the conversation that it belongs to.
        priority: Smaller is more urgent.
        slo_class: Name of the service class; empty for the only one.
        patience_ms: Its client leaves when there is no first token by then; 0 for never.
        leaves_ms: Its client leaves then, whatever it has; 0 for never.
    """

    request_id: str
    arrival_ms: float
    parts: Parts
    output_tokens: int
    session_id: str = ""
    priority: int = 0
    slo_class: str = ""
    patience_ms: float = 0.0
    leaves_ms: float = 0.0

    @property
    def text(self) -> tuple[TokenRun, ...]:
        """The prompt's text, in order."""
        return tuple([part for part in self.parts if isinstance(part, TokenRun)])

    @property
    def media(self) -> tuple[MediaRef, ...]:
        """The prompt's pictures, clips and sounds, in order."""
        return tuple([part for part in self.parts if isinstance(part, MediaRef)])
