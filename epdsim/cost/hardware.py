"""GPUs: the rates that cost models divide by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from epdsim.core.errors import InputError
from epdsim.core.records import record

GIB = 1 << 30


@record
class Gpu:
    """Peak rates of one GPU, per second, before any efficiency factor.

    Attributes:
        bf16_flops: Dense tensor-core operations (a multiply-add counts two).
        intra_node_bytes_per_s: GPU to GPU within a node, per direction.
        inter_node_bytes_per_s: GPU to GPU across nodes, per direction.
        pcie_bytes_per_s: Host to device, per direction.
        source: Where the figures come from.
        fp8_flops: The same in FP8; 0 where the tensor cores have none, and FP8 weights are multiplied as bf16.
    """

    name: str
    hbm_bytes_per_s: float
    bf16_flops: float
    memory_bytes: int
    intra_node_bytes_per_s: float
    inter_node_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str
    fp8_flops: float = 0.0


_AICONFIGURATOR = "AIConfigurator 0.12.0 system file"


def _gpu(name: str, *rates: float, fp8: float = 0.0, source: str = _AICONFIGURATOR) -> Gpu:
    """Units of data sheets: HBM TB/s, bf16 TFLOP/s, memory GiB, then GB/s within a node, across nodes, over PCIe."""
    hbm, flops, memory, intra, inter, pcie = rates
    links = intra * 1e9, inter * 1e9, pcie * 1e9
    return Gpu(name, hbm * 1e12, flops * 1e12, int(memory * GIB), *links, source, fp8 * 1e12)


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _gpu("a100", 2.039, 312, 80, 300, 25, 32),
            _gpu("h100", 3.35, 989, 80, 450, 50, 64, fp8=1978),
            _gpu("h200", 4.8, 989, 141, 450, 50, 64, fp8=1978),
            _gpu("b200", 7.7, 2250, 180, 900, 100, 128, fp8=4500),
            _gpu("gb200", 8.0, 2500, 185, 900, 900, 64, fp8=5000),
            _gpu("l40s", 0.864, 362, 45, 32, 50, 32, fp8=733),
            # What the H100 is, with half its links.
            _gpu(
                "h800",
                3.35,
                989,
                80,
                200,
                50,
                64,
                fp8=1978,
                source="NVIDIA data sheet; inter-node and PCIe assumed as H100",
            ),
            _gpu(
                "a100-40g",
                1.555,
                312,
                40,
                300,
                25,
                32,
                source="NVIDIA A100 data sheet; inter-node as AIConfigurator's A100",
            ),
            # No NVLink: GPU to GPU goes over PCIe 4.0.
            _gpu(
                "rtx4090",
                1.008,
                165,
                24,
                32,
                25,
                32,
                fp8=330,
                source="NVIDIA Ada white paper; inter-node assumed as A100",
            ),
            # The vendor publishes no data sheet; HBM, bf16, memory and NVLink are the widely reported figures, the network and PCIe
            # rates are assumed equal to the H100's.
            _gpu(
                "h20", 4.0, 148, 96, 450, 50, 64, fp8=296, source="press reports; inter-node and PCIe assumed as H100"
            ),
        )
    }
)
"""Known GPUs by name (SXM variants where there are several)."""


def gpu(name: str) -> Gpu:
    """Look a GPU up; case and a trailing `_sxm` are ignored.

    Raises:
        InputError: When the name is unknown.
    """
    found = GPUS.get(name.lower().removesuffix("_sxm"))
    if found is None:
        raise InputError(f"GPU {name!r}", "not a known GPU", f"use one of {', '.join(GPUS)}")
    return found
