"""vLLM's request and response models and its tensor codec, byte for byte.

`epdsim.wire.tensors` goes between handles and torch tensors and is imported by name, since torch loads slowly.
"""

from epdsim.wire.base import Fault, OpenModel, WireModel, find_faults, parse, unknown_fields
from epdsim.wire.codec import blob_size, encode_blob, encode_item, item_size, raw_bytes
from epdsim.wire.decoding import LIMITS, Limits, decode_blob, decode_item
from epdsim.wire.features import MultiModalFeatures, PlaceholderRangeInfo, features_from_json, features_to_json
from epdsim.wire.neutral import item_from_neutral, item_to_neutral
from epdsim.wire.request import (
    ContentPart,
    GenerateRequest,
    ReasoningParserKwargs,
    StreamOptions,
    leg_to_json,
    request_faults,
    validate_request,
)
from epdsim.wire.sampling import SamplingParams

__all__ = [
    "LIMITS",
    "ContentPart",
    "Fault",
    "GenerateRequest",
    "Limits",
    "MultiModalFeatures",
    "OpenModel",
    "PlaceholderRangeInfo",
    "ReasoningParserKwargs",
    "SamplingParams",
    "StreamOptions",
    "WireModel",
    "blob_size",
    "decode_blob",
    "decode_item",
    "encode_blob",
    "encode_item",
    "features_from_json",
    "features_to_json",
    "find_faults",
    "item_from_neutral",
    "item_size",
    "item_to_neutral",
    "leg_to_json",
    "parse",
    "raw_bytes",
    "request_faults",
    "unknown_fields",
    "validate_request",
]
