"""Requests and arrivals: generators and readers of public traces."""

from typing import TYPE_CHECKING

from epdsim.core.lazy import names_in

__all__ = [
    "ClientsSpec",
    "ClosedLoop",
    "MediaRef",
    "OverlaySpec",
    "TraceCut",
    "Workload",
    "WorkloadRequest",
    "WorkloadSpec",
    "build_workload",
    "named_stream",
    "overlay_images",
    "parse_workload_spec",
    "read_azure_csv",
    "read_jsonl",
    "with_clients",
    "write_jsonl",
]

if TYPE_CHECKING:
    from epdsim.workload.azure import read_azure_csv
    from epdsim.workload.jsonl import read_jsonl, write_jsonl
    from epdsim.workload.leaving import ClientsSpec, with_clients
    from epdsim.workload.overlay import OverlaySpec, overlay_images
    from epdsim.workload.registry import WorkloadSpec, build_workload, parse_workload_spec
    from epdsim.workload.request import MediaRef, WorkloadRequest
    from epdsim.workload.streams import named_stream
    from epdsim.workload.trace_files import TraceCut
    from epdsim.workload.workload import ClosedLoop, Workload
else:
    __getattr__, __dir__ = names_in(
        __name__,
        ("request", "streams", "workload", "registry", "leaving", "trace_files", "overlay", "azure", "jsonl"),
        __all__,
    )
