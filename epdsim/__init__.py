"""epdsim: simulation and property tests for disaggregated multimodal serving."""

__version__ = "0.1.0"
