"""What the verbs that run a model print on a terminal: the doctor's findings, and the strongest attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechview.cli.show import facts, table
from mechview.manifest import SCHEMA_VERSION

QUANTITIES = ("pattern", "message", "attention", "stream")


def doctor_text(model: Any, found: Any) -> str:
    """Environment, model, backend, parity, agreement, limits, verdict."""
    parts = [
        facts(found.environment, "ENVIRONMENT"),
        facts(_model(model, found), "\nMODEL"),
        facts({"captured by": found.backend, "because": found.backend_why}, "\nBACKEND"),
        _parity_text(found),
        facts(_agreement(found), "\nBRIDGE AGAINST FORWARD HOOKS"),
        "\nLIMITS\n" + "".join(f"- {limit}\n" for limit in found.limits or ("none known for this model",)),
        f"\n{_verdict(found)}\n",
    ]
    return "".join(parts)


def _model(model: Any, found: Any) -> dict[str, Any]:
    about, shape = found.manifest, model.shape
    layers = f"{shape.n_encoder_layers} + {shape.n_layers}" if shape.n_encoder_layers else shape.n_layers
    return {
        "name": about["model"],
        "source": f"{about['source']}{f', {model.source.folder}' if model.source.folder else ''}",
        "revision": about["revision"],
        "weights sha256": about["weights_sha256"],
        "tokenizer sha256": about["tokenizer_sha256"] or "no tokenizer: prompts are token ids",
        "family": shape.family,
        "layers × heads": f"{layers} × {shape.n_heads} ({shape.n_kv_heads} key/value)",
        "d_model, d_head, d_mlp": f"{shape.d_model}, {shape.d_head}, {shape.d_mlp}",
        "vocabulary, context": f"{shape.d_vocab}, {shape.n_ctx or 'no end'}",
        "norm": f"{shape.norm}, {shape.placement}",
        "position": shape.position,
    }


def _parity_text(found: Any) -> str:
    if found.refused:
        return f"\nPARITY\nnot measured: {found.refused}\n"
    rows: dict[tuple[Any, Any], dict[str, float]] = {}
    logits = None
    for row in found.worst:
        if row.layer is None:
            logits = row.error
        else:
            rows.setdefault((row.stack, row.layer), {})[row.quantity] = row.error
    cells = [(stack, layer, *(errors.get(name) for name in QUANTITIES)) for (stack, layer), errors in rows.items()]
    tokens = ", ".join(str(one.n_tokens) for one in found.parities)
    title = f"worst max|ours - model's| / max|model's| of each layer, on {tokens} tokens"
    against = "logits against the original library: "
    against += "not measured, the model has none\n" if logits is None else f"{logits:.2g}\n"
    return "\nPARITY\n" + table(("stack", "layer", *QUANTITIES), cells, title) + against


def _agreement(found: Any) -> dict[str, Any]:
    return found.agreement or {"not compared": found.agreement_note}


def _verdict(found: Any) -> str:
    if found.refused:
        return "PARTIAL: weights can be inspected, activations cannot"
    worst = max((row for one in found.parities for row in one.rows), key=lambda row: _size(row.error))
    where = f"{worst.quantity} {worst.label}".strip()
    return (
        f"{'PASSED' if found.passed else 'FAILED'}: worst parity {worst.error:.2g} ({where}), tolerance {tolerance():g}"
    )


def _size(error: float) -> float:
    return float("inf") if error != error else error


def tolerance() -> float:
    from mechview.checks import TOLERANCE

    return TOLERANCE


def doctor_document(found: Any) -> Mapping[str, Any]:
    """The doctor's JSON: everything the terminal shows, parity row by row."""
    return {
        "schema_version": SCHEMA_VERSION,
        "table": "parity",
        "passed": found.passed and not found.refused,
        "refused": found.refused,
        "tolerance": tolerance(),
        "environment": found.environment,
        "backend": {"name": found.backend, "why": found.backend_why},
        "agreement": found.agreement,
        "agreement_note": found.agreement_note,
        "limits": list(found.limits),
        "manifest": found.manifest,
        "rows": [] if found.refused else found.frame().to_dict("records"),
    }


def attend_text(found: list[Any], top: int) -> str:
    """For every prompt, each head's strongest pairs; queries that see one key have no choice and are left out."""
    return "\n".join(_prompt_text(seen, n, top) for n, seen in enumerate(found))


def _prompt_text(seen: Any, number: int, top: int) -> str:
    shown = "".join(token.shown for token in (seen.trace.source_tokens or seen.trace.tokens))
    rows = [row for head in seen.heads for row in _pairs(head, seen.trace, top)]
    title = f"prompt {number}: {shown} ({len(seen.trace.tokens)} tokens, {'with' if seen.trace.bos else 'without'} BOS added)"
    made = table(("head", "from", "at", "to", "at", "weight", "score", "value norm"), rows, title)
    origin = seen.heads[0].scores_from if seen.heads else "no head"
    return made + f"scores: {origin}; the {top} largest weights of each head, of queries that see more than one key\n"


def _pairs(head: Any, trace: Any, top: int) -> list[tuple[Any, ...]]:
    import torch

    queries, keys = trace.tokens_of(head.stack)
    seen = head.scores != -torch.inf
    weights = head.pattern.masked_fill(~(seen & (seen.sum(-1, keepdim=True) > 1)), -1.0)
    values, places = weights.flatten().topk(min(top, weights.numel()))
    found = []
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        q, k = divmod(place, weights.shape[-1])
        if value >= 0:
            score, norm = float(head.scores[q, k]), float(head.value_norm[k])
            found.append((head.label, queries[q].shown, q, keys[k].shown, k, value, score, norm))
    return found
