"""The one vocabulary of axis names, used in jaxtyping signatures and einops patterns.

Matrices act on row vectors (`x @ W`), so an input axis stands left of an output axis.
Sizes that grouped-query attention makes different have different names: `head` counts query heads,
`kv_head` key/value heads.
"""

AXES: dict[str, str] = {
    "layer": "block of the transformer, from 0",
    "head": "query head, from 0",
    "kv_head": "key/value head, shared by a group of query heads",
    "pos": "token position",
    "q_pos": "query position: the token that looks (destination)",
    "k_pos": "key position: the token that is looked at (source)",
    "d_model": "coordinate of the residual stream",
    "d_head": "coordinate inside a head",
    "d_mlp": "hidden unit (neuron) of the MLP",
    "d_vocab": "token of the vocabulary",
    "expert": "expert of a mixture-of-experts MLP",
    "component": "anything that adds to the residual stream",
    "key_component": "the same on the key side of a score: another stack's in cross-attention",
    "point": "place in the residual stream: before a block, in its middle, after the last",
    "slot": "place among a mixture's chosen experts",
    "n": "inner size of a small square matrix",
    "rank": "inner axis of a thin factorisation",
    "freq": "rotary frequency",
    "site": "spin of a spin system (token)",
    "state": "joint state of all spins, or stored pattern of a memory",
    "dim": "component of a vector spin, or of its field",
    "bucket": "bucket of relative distances (T5)",
}
