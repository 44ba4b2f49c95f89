"""Named random streams: who draws is named, so that one drawer more or less never changes what another draws."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from epdsim.core.errors import InputError


def _digest(names: tuple[str | int, ...], key: bytes = b"") -> bytes:
    return blake2b("\x1f".join(map(str, names)).encode(), digest_size=16, key=key).digest()


def named_stream(seed: int, *names: str | int) -> np.random.Generator:
    """An independent generator for one drawer.

    Args:
        seed: Seed of the run, at least 0.
        names: Whose stream it is, for example `"servegen", 12, "arrivals"`.

    Raises:
        InputError: The seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed {seed}", "a seed is at least 0")
    words = np.frombuffer(_digest(names), dtype="<u4")
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(int(word) for word in words)))
    )


class KeyedStreams:
    """One stream per request, found by its id: the same request draws the same whatever is read before or after it.

    Args:
        seed: Seed of the run.
        name: Whose streams they are.
    """

    __slots__ = ("_key",)

    def __init__(self, seed: int, name: str) -> None:
        self._key = named_stream(seed, name).bytes(32)

    def coin(self, request_id: str) -> float:
        """A number in [0, 1) that belongs to the request; cheaper than a generator."""
        return (int.from_bytes(_digest(("coin", request_id), self._key)[:7]) >> 3) * 2.0**-53

    def generator(self, request_id: str) -> np.random.Generator:
        """The generator that belongs to the request."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(("draws", request_id), self._key))))
