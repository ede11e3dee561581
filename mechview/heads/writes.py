"""Metrics of what heads send: copying of attended tokens, name moving, and the direct effect on logits.

Logits are centred over the vocabulary (a constant changes no probability) and taken through the final
norm's gain; its scale at each position is the pass's own. A post-norm model's writes pass through later
norms on their way, and a masked-language head is not linear: there these metrics are refused.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mechview.errors import UnsupportedError
from mechview.heads.passes import LayerPass, Readout, final_scale, message_of, read_out
from mechview.heads.registry import metric
from mechview.models.norms import apply_norm

TOP, SMALL_VOCABULARY = 5, 100


@metric(
    "copying", "fourfold", source="Olsson et al. 2022", where="causal", unit="−1 to 1", title="copying (on tokens)",
    definition="What each attended token's message adds to the centred logits of the prompt's own tokens, clipped at 0: "
    "the share that goes to the attended token itself, mean over keys by the attention they get, scaled to [−1, 1]. "
    "25 random tokens four times.",
    cannot="Copying to similar tokens, and whether the head looks at what should be copied; the paper's exact scaling "
    "is not published in formulas.",
)  # fmt: skip
def copying(seen: LayerPass) -> Float[Tensor, "head"]:
    unembed = direct(seen)
    keys = torch.arange(seen.prompt.start, seen.prompt.stop, device=seen.pattern.device)
    ids, own = seen.ids[keys].unique(return_inverse=True)
    sent = unembed.folded(seen.sent[:, keys].double())
    rise = (sent @ (unembed.W[:, ids] - unembed.mean[:, None]).to(sent)).relu()
    share = rise.gather(2, own[None, :, None].expand(len(rise), -1, 1))[..., 0] / rise.sum(-1)
    weight = seen.pattern.double().sum(1)[:, keys] * (rise.sum(-1) > 0)
    return 2 * (weight * share.nan_to_num()).sum(1) / weight.sum(1) - 1


@metric(
    "name_mover", "names", source="Wang et al. 2022", where="causal", unit="share of names", title="name-mover copy score",
    definition="Share of names that are among the 5 largest logits of their own message: the stream after the first "
    "block at the name (layer 0: what it reads), through the head's norm, W_V, W_O, the final norm and unembedding. "
    "Without a tokenizer, ordinary tokens stand for names; below 100 tokens of vocabulary the largest 5 % count.",
    cannot="Whether the head attends to names: it simulates that it does.",
)  # fmt: skip
def name_mover(seen: LayerPass) -> Float[Tensor, "head"]:
    unembed = direct(seen)
    places = torch.tensor(seen.prompt.places, device=seen.pattern.device)
    x = seen.seen.source[places]
    if seen.layer > 0:
        x = apply_norm(seen.trace.stream(0, "post", seen.stack)[places], seen.attention.norm)
    logits = read_out(message_of(x, seen.attention), unembed)
    own = logits.gather(2, seen.ids[places][None, :, None].expand(len(logits), -1, 1))
    count = TOP if logits.shape[-1] >= SMALL_VOCABULARY else max(1, logits.shape[-1] // 20)
    return ((logits >= own).sum(-1) <= count).double().mean(1)  # ties count against a head that does nothing


@metric(
    "direct_effect", "text", source="Elhage et al. 2021; Wang et al. 2022", unit="logit", where="any",
    definition="What the head's write adds to the centred logit of the next token, final norm's scale frozen, mean over "
    "positions of text. Positive where it helps on the average.",
    cannot="Effects through later layers, and helping here while hurting there: see its size.",
)  # fmt: skip
def direct_effect(seen: LayerPass) -> Float[Tensor, "head"]:
    return next_token_effect(seen).mean(1)


@metric(
    "direct_effect_size", "text", source="Elhage et al. 2021; Wang et al. 2022", unit="logit", where="any",
    definition="Mean over positions of text of |what the head's write adds to the centred logit of the next token|.",
    cannot="Effects through later layers, which are most of what early heads do.",
)  # fmt: skip
def direct_effect_size(seen: LayerPass) -> Float[Tensor, "head"]:
    return next_token_effect(seen).abs().mean(1)


def next_token_effect(seen: LayerPass) -> Float[Tensor, "head pos"]:
    """Direct effect on the logit of the token that comes next, at each position before the last."""
    unembed = direct(seen)
    own, _ = seen.trace.tokens_of(seen.stack)
    following = torch.tensor([token.id for token in own[1:]], device=seen.pattern.device)
    writes = seen.trace.head_writes(seen.layer, seen.stack)[:, :-1].double()
    scale = final_scale(seen.trace, unembed)[:-1, 0].double()
    return unembed.rises(writes, following.expand(len(writes), -1)) / scale


def direct(seen: LayerPass) -> Readout:
    """The readout, where a head's write reaches it unchanged.

    Raises:
        UnsupportedError: it does not.
    """
    if seen.stack == "encoder" and len(seen.trace.weights.shape.stacks) > 1:
        raise UnsupportedError("encoder heads of an encoder-decoder model have no direct path to the logits")
    if seen.attention.stream_norm.kind != "none":
        raise UnsupportedError("in a post-norm model a write passes through later norms before it is read out")
    return seen.shared.readout
