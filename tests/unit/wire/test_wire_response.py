"""Answers, streams, errors, render and derender."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
from epdsim.core.releases.dialects import named
from epdsim.core.slots import Rendered
from epdsim.wire import (
    KEEP_ALIVE,
    AbortRequest,
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderStreamState,
    ErrorResponse,
    GenerateChunk,
    GenerateResponse,
    RenderOptions,
    derender_chat,
    derender_chat_chunk,
    derender_completion,
    derender_completion_chunk,
    error_response,
    find_faults,
    parse,
    read_stream,
    render_body,
    validate_request,
    write_stream,
)

ENCODED: dict[str, Any] = {
    "request_id": "generate-tokens-r1-enc-0",
    "model": "m",
    "created": 1790000000,
    "output_mode": "tokens",
    "choices": [{"index": 0, "token_ids": [], "finish_reason": "stop", "stop_reason": None, "logprobs": None}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5},
    "kv_transfer_params": None,
    "ec_transfer_params": {"h0": {"item_indices": [0], "metadata": {"image_grid_thw": [1, 4, 4]}, "peer_port": None}},
}
"""The encode response of the wire reference's worked example, with a null inside its free-form parameters."""


class TestAnswers:
    def test_the_worked_example_comes_back_without_top_level_nulls_and_with_those_inside(self):
        body = parse(GenerateResponse, ENCODED).body()
        assert body["ec_transfer_params"] == ENCODED["ec_transfer_params"]
        assert "kv_transfer_params" not in body
        assert body["choices"] == [{"index": 0, "token_ids": [], "finish_reason": "stop"}]
        assert body["usage"] == ENCODED["usage"]

    def test_a_missing_output_mode_means_tokens_and_text_needs_its_text(self):
        old = {key: value for key, value in ENCODED.items() if key != "output_mode"}
        assert parse(GenerateResponse, old).output_mode == "tokens"
        assert "has text" in find_faults(GenerateResponse, ENCODED | {"output_mode": "text"})[0].message
        assert find_faults(GenerateResponse, ENCODED | {"choices": [{"index": 0, "token_ids": [-1]}]})

    @pytest.mark.parametrize("entry", [{"token_id": 1, "logprob": -0.5}, {"token": "a", "logprob": -0.5}])
    @pytest.mark.parametrize("mode", ["tokens", "text"])
    def test_log_probabilities_are_by_id_or_by_text_as_the_mode_says(self, entry: dict[str, Any], mode: str):
        choice = {"index": 0, "token_ids": [1], "text": "a", "logprobs": {"content": [entry]}}
        faults = find_faults(GenerateResponse, {"output_mode": mode, "choices": [choice]})
        assert bool(faults) is (("token" in entry) is not (mode == "text"))

    def test_abort_needs_its_ids(self):
        assert find_faults(AbortRequest, {})
        assert parse(AbortRequest, {"request_ids": ["a"]}).request_ids == ["a"]


CHUNKS = [
    GenerateChunk.model_validate({"request_id": "r", "choices": [{"index": 0, "token_ids": [42]}]}),
    GenerateChunk.model_validate(
        {"request_id": "r", "choices": [{"index": 0, "token_ids": [2], "finish_reason": "stop"}]}
    ),
    GenerateChunk.model_validate(
        {"request_id": "r", "choices": [], "usage": {"prompt_tokens": 6, "completion_tokens": 2}}
    ),
]


class TestStreams:
    @pytest.mark.parametrize("size", [1, 7, 10_000])
    def test_events_come_back_however_the_text_is_cut(self, size: int):
        text = KEEP_ALIVE.join(write_stream(CHUNKS))
        assert text.endswith("data: [DONE]\n\n")
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert list(read_stream(pieces)) == CHUNKS

    def test_an_error_ends_the_stream(self):
        error = error_response("engine", "EC load failed")
        events = list(read_stream(write_stream([CHUNKS[0], error, CHUNKS[1]])))
        assert events == [CHUNKS[0], error]

    def test_what_is_cut_off_or_broken_is_refused_with_the_event(self):
        text = "".join(write_stream(CHUNKS))
        with pytest.raises(InputError, match=r"ends without \[DONE\]"):
            list(read_stream([text[:-20]]))
        with pytest.raises(InputError, match="event 0 of the stream: it is not JSON"):
            list(read_stream(["data: {]\n\n"]))
        with pytest.raises(InputError, match="event 1 of the stream: GenerateChunk choices"):
            list(read_stream([text[: text.index("\n\n") + 2], 'data: {"usage": null}\n\n']))


@pytest.mark.parametrize(
    ("cause", "code", "kind"),
    [
        ("validation", 400, "Bad Request"),
        ("value", 400, "BadRequestError"),
        ("not enabled", 403, "PermissionDeniedError"),
        ("unknown model", 404, "NotFoundError"),
        ("media", 422, "UnprocessableEntityError"),
        ("engine", 500, "InternalServerError"),
        ("not implemented", 501, "NotImplementedError"),
        ("queue full", 503, "ServiceUnavailableError"),
    ],
)
def test_errors_have_the_status_of_their_cause(cause: Any, code: int, kind: str):
    body = error_response(cause, "why").body()
    assert (body["error"]["code"], body["error"]["type"], body["error"]["message"]) == (code, kind, "why")
    assert body["error"].get("param") == ("model" if cause == "unknown model" else None)
    assert parse(ErrorResponse, body).body() == body


class TestRender:
    GRID = Field(TensorHandle("int64", (3,), bytes(24)), BatchedKind(keep_on_cpu=True))
    RENDERED = Rendered(
        TokenPrompt([1, 9, 9, 7]),
        {"image": ["h"], "audio": ["s"]},
        {"image": [PlaceholderRange(1, 1)], "audio": [PlaceholderRange(2, 1)]},
        {"image": [MediaItem({"grid": GRID})], "audio": [MediaItem({"mel": Field(1.0, BatchedKind())})]},
    )

    def test_what_render_answers_generate_accepts(self):
        body = render_body("r", self.RENDERED, lambda _: (), sampling_params={"max_tokens": 8}, model="m")
        assert list(body) == ["request_id", "model", "token_ids", "features", "sampling_params", "stream"]
        assert body["features"]["mm_metadata"]["audio"] == [None]
        assert len(validate_request(json.loads(json.dumps(body))).mm_features()) == 2
        with pytest.raises(InputError, match="mm_metadata has the modalities"):
            render_body("r", self.RENDERED, lambda _: (), sampling_params={}, dialect=named("vllm-0.32"))

    @pytest.mark.parametrize(
        ("asked", "kept"),
        [
            ({}, "tensors"),
            ({"mm_payload": "none"}, "none"),
            ({"return_mm_kwargs": False}, "none"),
            ({"return_mm_kwargs": True}, "tensors"),
            ({"return_mm_kwargs": False, "mm_payload": "tensors"}, "tensors"),
        ],
    )
    def test_payload_can_be_left_out(self, asked: dict[str, Any], kept: str):
        options = parse(RenderOptions, asked)
        assert options.mm_payload == kept
        body = render_body("r", self.RENDERED, lambda _: (), sampling_params={}, options=options)
        assert ("kwargs_data" in body["features"]) is (kept == "tensors")

    def test_text_has_no_features_and_runs_have_no_tokens(self):
        assert "features" not in render_body("r", Rendered(TokenPrompt([1])), lambda _: (), sampling_params={})
        with pytest.raises(InputError, match="no token ids"):
            render_body("r", Rendered(RunPrompt([TokenRun("a", 0, 2)])), lambda _: (), sampling_params={})
        assert find_faults(RenderOptions, {"mm_payload": "all"})


def spell(token_ids: Any) -> str:
    return "".join(chr(97 + one) for one in token_ids)


ANSWER = {
    "request_id": "r",
    "choices": [
        {"index": 0, "token_ids": [0, 1, 2], "finish_reason": "length"},
        {
            "index": 1,
            "token_ids": [3],
            "logprobs": {
                "content": [
                    {"token_id": 3, "logprob": float("-inf"), "top_logprobs": [{"token_id": 4, "logprob": -0.5}]}
                ]
            },
        },
    ],
    "kv_transfer_params": {"a": 1},
}


class TestDerender:
    def test_a_chat(self):
        request = parse(DerenderChatRequest, {"generate_response": ANSWER, "prompt_tokens": 6})
        chat = derender_chat(request, spell, "m").body()
        assert [one["message"] for one in chat["choices"]] == [
            {"role": "assistant", "content": "abc"},
            {"role": "assistant", "content": "d"},
        ]
        assert chat["usage"] == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
        assert (chat["object"], chat["model"], chat["id"]) == ("chat.completion", "m", "r")
        assert chat["kv_transfer_params"] == {"a": 1}
        assert chat["choices"][1]["logprobs"]["content"] == [
            {
                "token": "d",
                "logprob": -9999.0,
                "bytes": [100],
                "top_logprobs": [{"token": "e", "logprob": -0.5, "bytes": [101]}],
            }
        ]

    def test_a_completion_of_several_prompts(self):
        other = {"request_id": "s", "choices": [{"index": 0, "token_ids": [25]}]}
        request = parse(DerenderCompletionRequest, {"generate_responses": [ANSWER, other], "prompt_tokens": [2, 3]})
        done = derender_completion(request, spell, "m")
        assert [(one.index, one.text) for one in done.choices] == [(0, "abc"), (1, "d"), (2, "z")]
        assert done.usage is not None
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 5)
        assert done.kv_transfer_params is None
        with pytest.raises(InputError, match="there is none"):
            derender_completion(parse(DerenderCompletionRequest, {"generate_responses": []}), spell, "m")

    @pytest.mark.parametrize("cut", range(4))
    def test_chunks_add_up_to_the_whole_whatever_the_cut(self, cut: int):
        state: dict[str, Any] | None = None
        content, roles = "", []
        for token_ids in ([0, 1, 2][:cut], [0, 1, 2][cut:], None):
            choices = [] if token_ids is None else [{"index": 0, "token_ids": token_ids}]
            body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": choices}, "stream_state": state}
            answer = derender_chat_chunk(parse(DerenderChatStreamRequest, body), spell, "m").body()
            state = json.loads(json.dumps(answer["stream_state"]))
            for one in answer["chunk"]["choices"]:
                content += one["delta"].get("content", "")
                roles.append(one["delta"].get("role"))
        assert content == "abc"
        assert roles == ["assistant", None]
        assert state is not None
        assert state["logprob_text_offset"] == 3
        assert state["logprob_context_token_ids"] == [0, 1, 2]

    def test_a_completion_in_chunks(self):
        body = {"stream": True, "generate_chunk": {"request_id": "r", "choices": [{"index": 0, "token_ids": [5]}]}}
        answer = derender_completion_chunk(parse(DerenderCompletionStreamRequest, body), spell, "m")
        assert answer.chunk.choices[0].text == "f"
        assert answer.stream_state.logprob_text_offset == 1

    @pytest.mark.parametrize(
        ("model", "body", "said"),
        [
            (
                DerenderChatRequest,
                {"generate_response": {"output_mode": "text", "choices": []}},
                "output mode 'tokens'",
            ),
            (DerenderChatRequest, {"stream": True, "generate_response": ANSWER}, "False"),
            (
                DerenderChatStreamRequest,
                {"stream": True, "generate_chunk": {"output_mode": "text", "choices": []}},
                "output mode 'tokens'",
            ),
            (
                DerenderCompletionRequest,
                {"generate_responses": [ANSWER], "prompt_tokens": []},
                "prompt_tokens has length 0",
            ),
            (
                DerenderCompletionRequest,
                {"generate_responses": [], "prompt_token_ids": [None]},
                "prompt_token_ids has length 1",
            ),
            (DerenderStreamState, {"output_token_ids": [1], "output_chunk_lens": [2]}, "add up to 2"),
            (DerenderStreamState, {"prev_tokens": ["a"] * 1025}, "the limit is 1024"),
            (DerenderStreamState, {"logprob_context_token_ids": [1] * 5}, "at most 4"),
        ],
    )
    def test_what_is_refused(self, model: Any, body: dict[str, Any], said: str):
        assert said in find_faults(model, body)[0].message

    def test_one_state_belongs_to_one_output(self):
        body = {"stream": True, "generate_chunk": ANSWER}
        with pytest.raises(InputError, match="a chunk with 2 choices"):
            derender_chat_chunk(parse(DerenderChatStreamRequest, body), spell, "m")
