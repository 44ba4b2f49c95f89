"""How long bytes take from one place to another."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from epdsim.core.errors import InputError
from epdsim.cost.checks import non_negative, positive


class Link:
    """A fixed latency plus bytes over a bandwidth; who shares the link is the caller's business.

    Args:
        bandwidth_bytes_per_s: Above 0.
        latency_ms: Paid once per transfer, of nothing too.

    Raises:
        InputError: When the bandwidth is not above 0 or the latency negative, or either not finite.
    """

    __slots__ = ("_byte_ms", "bandwidth_bytes_per_s", "latency_ms")

    def __init__(self, bandwidth_bytes_per_s: float, latency_ms: float = 0.0) -> None:
        self.bandwidth_bytes_per_s = positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
        self.latency_ms = non_negative("latency_ms", latency_ms)
        self._byte_ms = 1e3 / bandwidth_bytes_per_s

    def transfer_ms(self, nbytes: float) -> float:
        """Milliseconds until the last byte is there.

        Raises:
            InputError: When `nbytes` is negative or not a number.
        """
        if not nbytes >= 0:
            raise InputError(f"a transfer of {nbytes} bytes", "must be 0 or more")
        return self.latency_ms + nbytes * self._byte_ms

    def __repr__(self) -> str:
        return f"Link({self.bandwidth_bytes_per_s:g}, {self.latency_ms:g})"


_MIB = 1 << 20

LINKS: Mapping[str, Link] = MappingProxyType(
    {
        # Latency of a point-to-point transfer: 10 microseconds, AIConfigurator 0.12.0.
        "nvlink-a100": Link(300e9, 0.01),
        "nvlink-h100": Link(450e9, 0.01),
        "nvlink-b200": Link(900e9, 0.01),
        "pcie-gen4": Link(32e9, 0.01),
        "pcie-gen5": Link(64e9, 0.01),
        "rdma-200g": Link(25e9, 0.01),
        "rdma-400g": Link(50e9, 0.01),
        # Mooncake Store over TCP on one machine, vLLM PR 47302: encoder to store, store to prefill, KV save.
        "mooncake-tcp-ec-save": Link(694 * _MIB, 0.01),
        "mooncake-tcp-ec-load": Link(912 * _MIB, 0.01),
        "mooncake-tcp-kv-save": Link(316 * _MIB, 0.01),
        # Mooncake TransferEngine over RoCE, quoted in uccl issue 166.
        "mooncake-rdma-4x200g": Link(87e9, 0.01),
        "mooncake-rdma-8x400g": Link(190e9, 0.01),
    }
)
"""Links by name: peak rates of hardware (AIConfigurator 0.12.0), and rates that were measured through a library."""


def named_link(name: str) -> Link:
    """Look a link up.

    Raises:
        InputError: When the name is unknown.
    """
    found = LINKS.get(name)
    if found is None:
        raise InputError(f"link {name!r}", "not a known link", f"use one of {', '.join(LINKS)}")
    return found
