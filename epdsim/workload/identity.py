"""A hash is the identity of a file's bytes, so it has one size wherever it comes."""

from __future__ import annotations

from collections.abc import Iterable

from epdsim.workload.request import MediaRef

_Size = tuple[str, int, int, int, float, int]

TWO_SIZES_REMEDY = "equal hashes are one file: hash the files themselves, or leave the hashes out"


class SizesOfHashes:
    """Which size each hash of a trace has, as far as it has been read; some 150 bytes of memory for each hash."""

    def __init__(self) -> None:
        self._by_hash: dict[str, _Size] = {}
        self._sizes: dict[_Size, _Size] = {}  # One tuple for all hashes of a size, for there are few sizes.

    def check(self, media: Iterable[MediaRef]) -> None:
        """Take the media of a request.

        Raises:
            ValueError: One of them had another size before.
        """
        for one in media:
            size = (one.modality, one.height, one.width, one.num_frames, one.duration_s, one.num_tokens)
            known = self._by_hash.setdefault(one.content, self._sizes.setdefault(size, size))
            if known != size:
                raise ValueError(f"has the hash {one.content!r} for {_told(size)}, which was {_told(known)} before")


def _told(size: _Size) -> str:
    modality, height, width, num_frames, duration_s, num_tokens = size
    told = [f"{height}x{width}"] if height or width else []
    told += [f"{num_frames} frames"] if num_frames > 1 else []
    told += [f"{duration_s:g} s"] if duration_s else []
    told += [f"{num_tokens} tokens"] if num_tokens else []
    return f"{'an' if modality[:1] in {'a', 'i'} else 'a'} {modality} of {', '.join(told)}"
