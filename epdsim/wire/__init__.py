"""vLLM's request and response models and its tensor codec, byte for byte.

`epdsim.wire.tensors` goes between handles and torch tensors and is imported by name, since torch loads slowly.
"""

from epdsim.wire.base import Fault, OpenModel, WireModel, find_faults, parse, unknown_fields
from epdsim.wire.codec import blob_size, encode_blob, encode_item, item_size, raw_bytes
from epdsim.wire.decoding import LIMITS, Limits, decode_blob, decode_item
from epdsim.wire.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderChatStreamResponse,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderCompletionStreamResponse,
    DerenderStreamState,
    derender_chat,
    derender_chat_chunk,
    derender_completion,
    derender_completion_chunk,
)
from epdsim.wire.errors import STATUS, AbortRequest, ErrorInfo, ErrorResponse, error_response
from epdsim.wire.features import MultiModalFeatures, PlaceholderRangeInfo, features_from_json, features_to_json
from epdsim.wire.neutral import item_from_neutral, item_to_neutral
from epdsim.wire.openai import ChatCompletion, ChatCompletionChunk, TextCompletion
from epdsim.wire.render import RenderOptions, render_body
from epdsim.wire.request import (
    ContentPart,
    GenerateRequest,
    ReasoningParserKwargs,
    StreamOptions,
    leg_to_json,
    request_faults,
    validate_request,
)
from epdsim.wire.response import (
    KEEP_ALIVE,
    ChunkChoice,
    GenerateChoice,
    GenerateChunk,
    GenerateResponse,
    UsageInfo,
    read_stream,
    write_event,
    write_stream,
)
from epdsim.wire.sampling import SamplingParams
from epdsim.wire.transfer import (
    KV_MODES,
    EcDescriptor,
    KvMode,
    MooncakeWish,
    NixlHandle,
    NixlWish,
    check_kv,
    check_rows,
    ec_descriptors,
)

__all__ = [
    "KEEP_ALIVE",
    "KV_MODES",
    "LIMITS",
    "STATUS",
    "AbortRequest",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChunkChoice",
    "ContentPart",
    "DerenderChatRequest",
    "DerenderChatStreamRequest",
    "DerenderChatStreamResponse",
    "DerenderCompletionRequest",
    "DerenderCompletionStreamRequest",
    "DerenderCompletionStreamResponse",
    "DerenderStreamState",
    "EcDescriptor",
    "ErrorInfo",
    "ErrorResponse",
    "Fault",
    "GenerateChoice",
    "GenerateChunk",
    "GenerateRequest",
    "GenerateResponse",
    "KvMode",
    "Limits",
    "MooncakeWish",
    "MultiModalFeatures",
    "NixlHandle",
    "NixlWish",
    "OpenModel",
    "PlaceholderRangeInfo",
    "ReasoningParserKwargs",
    "RenderOptions",
    "SamplingParams",
    "StreamOptions",
    "TextCompletion",
    "UsageInfo",
    "WireModel",
    "blob_size",
    "check_kv",
    "check_rows",
    "decode_blob",
    "decode_item",
    "derender_chat",
    "derender_chat_chunk",
    "derender_completion",
    "derender_completion_chunk",
    "ec_descriptors",
    "encode_blob",
    "encode_item",
    "error_response",
    "features_from_json",
    "features_to_json",
    "find_faults",
    "item_from_neutral",
    "item_size",
    "item_to_neutral",
    "leg_to_json",
    "parse",
    "raw_bytes",
    "read_stream",
    "render_body",
    "request_faults",
    "unknown_fields",
    "validate_request",
    "write_event",
    "write_stream",
]
