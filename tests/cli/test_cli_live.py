"""`epdsim replay --live` and `epdsim record` as a user types them."""

from __future__ import annotations

import importlib.util

import pytest

from epdsim.cli import main


@pytest.fixture
def epdsim(monkeypatch, capsys, tmp_path):
    """Exit code, stdout and stderr of a command, typed in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(words):
        monkeypatch.setattr("sys.argv", ["epdsim", *words.split()])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("replay", "no recording and no live system: replay takes a recording or --live SYSTEM; give one of the two"),
        (
            "replay x.jsonl --live vllm",
            "x.jsonl and --live vllm: replay takes a recording or --live SYSTEM; give one of the two",
        ),
        ("replay --live sglang", "live system 'sglang': the only one is vllm"),
        ("replay --live vllm --seeds 5", "--seeds '5': it is A:B with 0 <= A < B; give for example 0:25"),
        ("replay --live vllm --modes v1-ecc-ecp", "mode 'v1-ecc-ecp': ecc and ecp exclude each other"),
        (
            "record -o nowhere/x.jsonl",
            "nowhere/x.jsonl: its folder does not exist; create it or choose another place",
        ),
        ("record -o .", ".: it is a folder; name a file in it"),
        ("record -o x.jsonl --seeds 2:1", "--seeds '2:1': it is A:B with 0 <= A < B; give for example 0:25"),
        ("record -o x.jsonl --live sglang", "live system 'sglang': the only one is vllm"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(epdsim, tmp_path, words, says):
    assert epdsim(words) == (2, "", f"epdsim: {says}\n")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_mode_is_told_with_what_there_is(epdsim):
    code, _, told = epdsim("replay --live vllm --modes v1,v3")
    assert code == 2
    assert told.startswith("epdsim: mode 'v3': ")
    assert "async" in told
    assert told.count("\n") == 1


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed here")
@pytest.mark.parametrize("words", ["replay --live vllm", "record --live vllm -o x.jsonl.gz"])
def test_without_vllm_the_way_to_it_is_told(epdsim, tmp_path, words):
    says = "epdsim: vllm: it is not installed in this environment; install it with make vllm\n"
    assert epdsim(words) == (2, "", says)
    assert list(tmp_path.iterdir()) == []
