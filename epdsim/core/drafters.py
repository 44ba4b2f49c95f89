"""Speculative decoding: what a drafter asks of the scheduler, by the method it drafts with.

The scheduler does not draft. It gives a request tokens to verify beside the one that it computes anyway, keeps KV slots for what
the drafter writes past them, and heeds how far the drafter reads ahead in a prompt.
"""

from __future__ import annotations

from typing import NamedTuple

from epdsim.core.rules import Rule

METHODS = ("none", "ngram", "draft_model", "eagle", "mtp", "dflash")
"""`"eagle"` stands for every drafter with one module on the target's hidden states, `"mtp"` for one with a module per draft."""

PARALLEL_METHODS = ("draft_model", "eagle")
"""Methods that can draft all tokens in one pass (`parallel_drafting`): PARD and P-EAGLE."""


class Drafter(NamedTuple):
    """What a drafter asks of the scheduler.

    Attributes:
        num_drafts: Tokens that it proposes for a request in a step, at most; 0 without a drafter.
        num_lookahead: KV slots that it writes past the tokens of a step.
        num_prefill_lookahead: Prompt tokens past a chunk that it reads with the chunk.
        num_slots: Further input slots of its own that each scheduled request takes from `max_num_batched_tokens`.
        drops_block: Whether the last block of a prefix hit is computed again: its last slot holds what the drafter made of a
            token that followed it in another request.
    """

    num_drafts: int = 0
    num_lookahead: int = 0
    num_prefill_lookahead: int = 0
    num_slots: int = 0
    drops_block: bool = False

    @property
    def num_step_slots(self) -> int:
        """KV slots that a step of one decode takes at most: its token, the drafts, what the drafter writes; 0 without a drafter."""
        return self.num_drafts and 1 + self.num_drafts + self.num_lookahead


def drafter_of(method: str, num_drafts: int, *, parallel: bool, drops_block: bool) -> Drafter:
    """The drafter of a method, with the figures of vLLM 0.32.

    Args:
        method: Of `METHODS`.
        num_drafts: Tokens that it proposes, at most.
        parallel: Whether it drafts them in one pass.
        drops_block: Whether methods that read ahead drop the last block of a hit.
    """
    if method == "none":
        return Drafter()
    reads_ahead = method in {"eagle", "mtp", "dflash"}
    slots = {"draft_model": num_drafts if parallel else 1, "eagle": num_drafts - 1 if parallel else 0}
    return Drafter(
        num_drafts,
        num_lookahead={"ngram": 0, "dflash": num_drafts + 1}.get(method, num_drafts),
        num_prefill_lookahead=num_drafts if method == "mtp" else int(reads_ahead),
        num_slots=num_drafts if method == "dflash" else slots.get(method, 0),
        drops_block=reads_ahead and drops_block,
    )


def usable_hit(blocks: list[int], *, drops_block: bool) -> list[int]:
    """Blocks of a prefix hit that are used."""
    return blocks[:-1] if drops_block else blocks


def settled_tokens(num_tokens: int, num_lookahead: int) -> int:
    """Tokens of those computed whose KV cache no later chunk of the drafter writes again."""
    return num_tokens - max(0, num_lookahead - 1)


def window_end(end: int, num_lookahead: int) -> int:
    """Where the tokens end whose embeddings a chunk that ends at `end` reads."""
    return end + num_lookahead


def cut_before(num_left: int, num_tokens: int, num_lookahead: int, num_whole: int) -> int:
    """Length of a chunk that must not go into an item which cannot be encoded now.

    The drafter should not read into the item either. But a chunk that would be empty for that reason, or split the item before
    against the settings, goes up to it, and the drafter reads a bare placeholder, which costs it a guess. Else a request could
    wait for room that only its own progress frees.

    Args:
        num_left: Tokens from the start of the chunk to the item.
        num_tokens: Wanted ones.
        num_lookahead: How far the drafter reads past the chunk.
        num_whole: Tokens from the start of the chunk to the end of the item before, if items must not be split; else 0.
    """
    num_apart = num_left - num_lookahead
    return num_apart if num_apart > 0 and num_apart >= num_whole else max(0, min(num_left, num_tokens))


def cut_ahead(num_left: int, _num_tokens: int, num_lookahead: int, _num_whole: int) -> int:
    """The same, empty or inside the item before if need be: vLLM 0.32."""
    return max(0, num_left - num_lookahead)


def passed_items(num_confirmed: int, _num_lookahead: int) -> int:
    """Tokens within which an item ends that neither model nor drafter reads again: the drafter reads ahead, never back."""
    return num_confirmed


def passed_ahead(num_confirmed: int, num_lookahead: int) -> int:
    """The same, later by what the drafter reads ahead: vLLM 0.32."""
    return num_confirmed - num_lookahead


def kept_ahead(num_tokens: int, num_left: int, num_lookahead: int, num_whole: int) -> int:
    """Length of a chunk after which a drafter of several modules finds the known tokens that it reads with it, or the end.

    Its modules guess what they cannot read, which spoils guesses; a chunk that would be empty is computed all the same, for
    block boundaries and encoder inputs may cut the next one to the same length, and so is one that would split an item against
    the settings.

    Args:
        num_tokens: Wanted ones.
        num_left: Known tokens behind them.
        num_lookahead: How far the drafter reads.
        num_whole: Tokens from the start of the chunk to the end of the last item in it, if items must not be split; else 0.
    """
    num_kept = kept_ahead_or_nothing(num_tokens, num_left, num_lookahead, 0)
    return num_tokens if num_kept == 0 or num_kept < num_whole else num_kept


def kept_ahead_or_nothing(num_tokens: int, num_left: int, num_lookahead: int, _num_whole: int) -> int:
    """The same, empty or inside an item if need be: vLLM 0.32."""
    return max(0, num_tokens - (num_lookahead - num_left if 0 < num_left < num_lookahead else 0))


def num_rejected(num_drafts: int, num_yielded: int, *, is_stale: bool) -> int:
    """Drafts of a step that are rolled back, when it yielded one token and the accepted drafts."""
    return 0 if is_stale else num_drafts - max(0, num_yielded - 1)


def pads(num_computed: int, *, beside_decodes: bool, beside_prefill: bool) -> bool:
    """Whether an admission that has one token left to compute is given rows for drafts that nobody proposed."""
    return not beside_prefill and (beside_decodes or num_computed > 0)


DRAFTER_DROP = Rule(
    "kv_blocks.drafter_drop",
    "Under a drafter that reads ahead the last block of a prefix hit is computed again.",
    source="vLLM PR 17137",
    ideal=usable_hit,
)
DRAFTER_SETTLED = Rule(
    "kv_blocks.drafter_settled",
    "Under a drafter of several modules a block can be found once they have all written what it holds.",
    source="vLLM 0.32",
    ideal=settled_tokens,
)
DRAFTER_WINDOW = Rule(
    "scheduler.drafter_window",
    "The encoder inputs of a chunk are chosen as far as the drafter reads ahead.",
    source="vLLM PR 34220",
    ideal=window_end,
)
DRAFTER_CUT = Rule(
    "scheduler.drafter_cut",
    "A chunk is cut so that its drafter does not read an item that cannot be encoded, but never to nothing for that, nor inside "
    "an item that must not be split.",
    source="vLLM PR 34220, issue 47738 and vllm-ascend issue 17195; LIVE-PROG and CHUNK-WHOLE on random workloads",
    ideal=cut_before,
)
DRAFTER_PASSED = Rule(
    "scheduler.drafter_passed",
    "An encoder-cache entry is given up once no step reads it, be it for the model or for its drafter.",
    source="vLLM PR 46315; vllm-ascend issue 17195",
    ideal=passed_items,
)
DRAFTER_KEPT = Rule(
    "scheduler.drafter_kept",
    "A chunk leaves as many known tokens as a drafter of several modules reads with it, or none, but for that it is never empty "
    "and never splits an item that must be whole.",
    source="vLLM 0.32; LIVE-PROG on random workloads with block-aligned chunks; CHUNK-WHOLE on random workloads",
    ideal=kept_ahead,
)
REJECTED = Rule(
    "scheduler.rejected",
    "A rejected draft takes its computed token back, unless its request was preempted after the step, which took all.",
    source="vLLM PR 24799; vLLM 0.32",
    ideal=num_rejected,
)
DRAFT_PADDING = Rule(
    "scheduler.draft_padding",
    "A request admitted with one token left is given the rows of a decode with all drafts, unless a running prompt goes on.",
    source="vLLM PR 45237 and PR 55126",
    ideal=pads,
)
