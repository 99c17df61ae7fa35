"""DSpark: a small model beside the trunk that guesses the next five tokens at once.

The tricky idea: the guesses of a block do not see each other's tokens, only noise in their places, so one pass gives
all five; what an autoregressive draft would know, a rank-256 table from each picked token to the next one's logits
adds afterwards. The draft keeps no cache of its own guesses: its rings hold rows computed from the trunk's features.

Sources: DeepSeek-V4.1-Flash inference/model.py, revision dba1be0a; SGLang 0.5.23, models/deepseek_v4_dspark.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch
from torch import nn
from typing_extensions import override

from epd_kernels.formats import reference as formats
from epd_workers.reference.model.attention import attend
from epd_workers.reference.model.config import LayerPlan
from epd_workers.reference.model.hyper import collapse, first_pre
from epd_workers.reference.model.layer import Layer, State
from epd_workers.reference.model.norm import RMSNorm
from epd_workers.reference.model.rope import layer_frequencies, rotation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from epd_kernels.formats.reference import Codec
    from epd_workers.reference.model.config import TextConfig
    from epd_workers.reference.model.rope import Rotation

NOWHERE = -1


@dataclass(frozen=True)
class Ring:
    """What the draft has seen of some requests: their last `sliding_window` processed positions, in any order.

    Attributes:
        rows: [stages, requests, n, head_dim], as `Draft.context` gives them and the cache rounds them.
        positions: Of each row [requests, n] int64; `NOWHERE` where a place is empty.
    """

    rows: Tensor
    positions: Tensor


class Context(NamedTuple):
    """A stage's part of a ring: rows [n, w, head_dim] and which of them a block sees [n, w]."""

    rows: Tensor
    visible: Tensor


class Proposal(NamedTuple):
    """A block of guesses [requests, block] and, for each, the estimated chance that it is accepted."""

    ids: Tensor
    confidence: Tensor


class Vocabulary(Protocol):
    """What the draft borrows from the trunk."""

    @property
    def embed(self) -> nn.Embedding:
        """Token ids to rows [..., d]."""

    @property
    def head(self) -> nn.Linear:
        """Normed rows [..., d] to logits [..., vocab]."""


class Text(NamedTuple):
    """Whole texts: ids [batch, tokens] and the trunk's features [batch, tokens, targets * d]."""

    ids: Tensor
    features: Tensor


class Lesson(NamedTuple):
    """Guesses for training.

    Attributes:
        logits: [batch, n, block, vocab].
        confidence: [batch, n, block].
        targets: The tokens to guess [batch, n, block].
    """

    logits: Tensor
    confidence: Tensor
    targets: Tensor


class MarkovHead(nn.Module):
    """What the token before adds to a guess's logits: head(embed(id)), of rank `dspark_markov_rank`."""

    def __init__(self, text: TextConfig) -> None:
        super().__init__()
        vocab, rank = text.vocab_size, text.dspark_markov_rank
        # Not drawn: on the meta device drawing normal deviates imports a compiler, which takes seconds.
        self.embed = nn.Embedding(vocab, rank, _weight=torch.zeros(vocab, rank))
        self.head = nn.Linear(rank, vocab, bias=False)


class ConfidenceHead(nn.Module):
    """sigmoid(proj [h ; markov embedding of the token before])."""

    def __init__(self, text: TextConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(text.hidden_size + text.dspark_markov_rank, 1, bias=False)

    @override
    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """[..., d] and [..., rank] to [...]."""
        logit: Tensor = self.proj(torch.cat([hidden, before], dim=-1))
        return torch.sigmoid(logit.squeeze(-1))


class Stage(Layer):
    """One layer of the draft: window attention and fewer experts.

    The first also projects the trunk's features for all stages, the last also owns the heads. `bias_vl` of its gate
    is stored, but no block contains an image.
    """

    def __init__(self, text: TextConfig, index: int) -> None:
        sizes = replace(
            text,
            n_routed_experts=text.dspark_n_routed_experts,
            num_experts_per_tok=text.dspark_num_experts_per_tok,
        )
        super().__init__(sizes, _plan(text.num_hidden_layers + index))
        width, eps = text.hidden_size, text.rms_norm_eps
        first, last = index == 0, index == text.num_nextn_predict_layers - 1
        targets = len(text.dspark_target_layer_ids)
        self.main_proj = nn.Linear(targets * width, width, bias=False) if first else None
        self.main_norm = RMSNorm(width, eps) if first else None
        self.norm = RMSNorm(width, eps) if last else None
        self.markov_head = MarkovHead(text) if last else None
        self.confidence_head = ConfidenceHead(text) if last else None

    def mix(self, state: State, turn: Rotation, context: Context, codec: Codec | None) -> State:
        """Attention and experts over blocks, whose rows all see the same keys.

        Args:
            state: Streams [n, block, k, d].
            turn: Rotations of the rows' positions [n, block].
            context: What the blocks see beside themselves.
            codec: Rounds the block's own keys as the window cache does; None keeps them.
        """
        site = self.enter_attention(state)
        own = self.attn.entry(site.x, turn)
        if codec is not None:
            own = formats.ste(own, codec.round(own.detach()))
        query = self.attn.query(self.attn.query_latent(site.x), turn)
        count, block = query.shape[:2]
        seen = torch.cat((context.visible, torch.ones(count, block, dtype=torch.bool)), 1)
        keys = torch.cat((context.rows, own), 1)
        mixed = attend(query, keys, seen[:, None].expand(-1, block, -1), self.attn.attn_sink)
        return self.feed(site.leave(state, self.attn.output(mixed, turn)), None)


class Draft(nn.ModuleList):
    """All stages; parameter names are `mtp.{stage}.*` of the released checkpoint when it is registered as `mtp`."""

    def __init__(self, text: TextConfig) -> None:
        super().__init__([Stage(text, index) for index in range(text.num_nextn_predict_layers)])
        self.text = text

    @property
    def stages(self) -> list[Stage]:
        """The stages in order."""
        return cast("list[Stage]", list(self))

    def context(self, features: Tensor, positions: Tensor) -> Tensor:
        """Ring rows of processed tokens, rotated, not yet rounded to a cache's format.

        With x = main_norm(main_proj(features)): kv_norm(wkv x) of each stage.

        Args:
            features: Of each token, the mean of the streams at the inputs of the target layers,
                [..., targets * d].
            positions: [...] int64.

        Returns:
            [stages, ..., head_dim].
        """
        first = self.stages[0]
        assert first.main_proj is not None
        assert first.main_norm is not None
        turn = self._turn(positions, features.dtype)
        x = first.main_norm(first.main_proj(features))
        return torch.stack([stage.attn.entry(x, turn) for stage in self.stages])

    def propose(
        self, last: Tensor, position: Tensor, ring: Ring, trunk: Vocabulary, codec: Codec | None = None
    ) -> Proposal:
        """Guess the tokens after the last picked ones, greedily.

        A block is the picked token and noise; row i stands at position + 1 + i and guesses the token after it.

        Args:
            last: The last picked token of each request [requests] int64; the trunk has not processed it yet.
            position: The last processed position [requests] int64.
            ring: Rows of the processed positions; those of the last `sliding_window` are seen.
            trunk: The trunk's embedding and head.
            codec: As the window cache rounds; None keeps rows as they are.
        """
        hidden = self._hidden(last, position, ring, trunk.embed, codec)
        markov, confidence = self._heads()
        logits = self._base(hidden, trunk.head)
        ids, chances, before = [], [], last
        for i in range(self.text.dspark_block_size):
            embedded = markov.embed(before)
            before = (logits[:, i] + markov.head(embedded)).argmax(-1)
            ids.append(before)
            chances.append(confidence(hidden[:, i], embedded))
        return Proposal(torch.stack(ids, 1), torch.stack(chances, 1))

    def teach(self, text: Text, anchors: Tensor, trunk: Vocabulary, codec: Codec | None = None) -> Lesson:
        """Guess after many positions of whole texts in one call, the right tokens standing before each guess.

        Args:
            text: Texts and the trunk's features.
            anchors: Last processed positions [batch, n] int64, each at most tokens - block - 2.
            trunk: The trunk's embedding and head.
            codec: As the window cache rounds; None keeps rows as they are.
        """
        batch, count = anchors.shape
        block, tokens = self.text.dspark_block_size, text.ids.shape[1]
        rows = self.context(text.features, torch.arange(tokens).expand(batch, -1))
        if codec is not None:
            rows = formats.ste(rows, codec.round(rows.detach()))
        flat = anchors.flatten()
        owner = torch.arange(batch).repeat_interleave(count)
        seen = flat[:, None] - torch.arange(self.text.sliding_window)
        ring = Ring(rows[:, owner[:, None], seen.clamp(min=0)], torch.where(seen < 0, NOWHERE, seen))
        following = text.ids[owner[:, None], flat[:, None] + 1 + torch.arange(block + 1)]
        hidden = self._hidden(following[:, 0], flat, ring, trunk.embed, codec)
        markov, confidence = self._heads()
        embedded = markov.embed(following[:, :-1])
        logits = self._base(hidden, trunk.head) + markov.head(embedded)
        return Lesson(
            logits.view(batch, count, block, -1),
            confidence(hidden, embedded).view(batch, count, block),
            following[:, 1:].view(batch, count, block),
        )

    def _hidden(self, last: Tensor, position: Tensor, ring: Ring, embed: nn.Embedding, codec: Codec | None) -> Tensor:
        """Collapsed rows of the last stage [n, block, d], before the norm."""
        text, block = self.text, self.text.dspark_block_size
        noise = last.new_full((len(last), block - 1), text.dspark_noise_token_id)
        rows = embed(torch.cat([last[:, None], noise], 1))
        turn = self._turn(position[:, None] + 1 + torch.arange(block), rows.dtype)
        oldest = position[:, None] - text.sliding_window
        visible = (ring.positions > oldest) & (ring.positions >= 0) & (ring.positions <= position[:, None])
        streams = rows[..., None, :].expand(*rows.shape[:-1], text.hc_mult, -1)
        state = State(streams, first_pre(rows.shape[:-1], text.hc_mult, rows))
        for stage, kept in zip(self.stages, ring.rows, strict=True):
            state = stage.mix(state, turn, Context(kept, visible), codec)
        return collapse(state.streams, state.pre)

    def _base(self, hidden: Tensor, head: nn.Linear) -> Tensor:
        norm = self.stages[-1].norm
        assert norm is not None
        logits: Tensor = head(norm(hidden))
        return logits

    def _heads(self) -> tuple[MarkovHead, ConfidenceHead]:
        last = self.stages[-1]
        assert last.markov_head is not None
        assert last.confidence_head is not None
        return last.markov_head, last.confidence_head

    def _turn(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return rotation(positions, layer_frequencies(self.text, 0), dtype)


def verify(drafts: Sequence[int], picks: Sequence[int]) -> int:
    """How many guesses stand under greedy decoding.

    The trunk runs over the last picked token and the guesses; `picks` are its own choices after each of these rows.
    With n accepted, the tokens picks[0] ... picks[n] are the text's next ones: n guesses and one more.

    Args:
        drafts: The guesses, [block].
        picks: The trunk's choices, [block + 1].
    """
    return next((i for i, (guess, pick) in enumerate(zip(drafts, picks, strict=False)) if guess != pick), len(drafts))


def _plan(index: int) -> LayerPlan:
    return LayerPlan(
        index=index,
        mode="Window",
        ratio=0,
        decoder=True,
        kv_source=-1,
        index_source=-1,
        engram=False,
        candidates=False,
    )
