"""What the weights-only verbs print on a terminal: the head table, one head's card, a spectrum."""

from __future__ import annotations

from typing import Any

from mechview.cli.show import facts, table

LONGEST = 16
HEADS = ("norm", "top_singular_value", "stable_rank", "effective_rank", "parity_error")
SHORT = {"top_singular_value": "top σ", "stable_rank": "stable r", "effective_rank": "eff. r", "parity_error": "parity"}
UNMEASURED = "parity was not measured: it needs a forward pass (-p TEXT or --parity)"


def heads_text(found: Any, parity: Any) -> str:
    """One line a head, with the nulls of the ranks and what was checked below."""
    from mechview.tables import heads_wide

    wide = heads_wide(found)
    kept = [name for name in HEADS if parity is not None or name != "parity_error"]
    metrics = [(side, name) for side in ("pattern", "message") for name in kept]
    columns = ["head", "kv", *(f"{side} {SHORT.get(name, name)}" for side, name in metrics)]
    rows = [
        (row["label"], row["kv_head"], *(row[f"{side}_{name}"] for side, name in metrics)) for _, row in wide.iterrows()
    ]
    return table(columns, rows, _title(found)) + "".join(f"{line}\n" for line in [*_nulls(found), _checked(parity)])


def _title(found: Any) -> str:
    offsets = {row.offset for row in found.rows} - {None}
    at = f", rotary patterns at offset {offsets.pop()}" if offsets else ""
    folded = "norms folded" if found.folded else "norms not folded"
    heads = "1 head" if len(found.rows) == 1 else f"{len(found.rows)} heads"
    revision = f" ({found.revision})" if found.revision else ""
    return f"{found.model}{revision}: {heads}, {folded}, {found.dtype}{at}"


def _nulls(found: Any) -> list[str]:
    return [
        f"null of {name.replace('_', ' ')}: {null.mean:.4g} ± {null.sd:.2g} (Gaussian factors of these sizes, {null.n} draws)"
        for name, null in found.nulls.items()
        if null.n
    ]


def _checked(parity: Any) -> str:
    if parity is None:
        return UNMEASURED
    worst = parity.worst
    verdict = "passed" if parity.passed else "FAILED"
    where = f"{worst.quantity} {worst.label}".strip()
    return f"parity {verdict} on {parity.n_tokens} tokens ({parity.backend}): worst {worst.error:.2g}, {where}"


def head_card(model: Any, found: Any, factors: Any) -> str:
    """Facts of a head, then both sides' numbers beside their nulls and their largest singular values."""
    row = found.rows[0]
    shape = model.shape
    about = {
        "model": _title(found),
        "family": f"{shape.family}: {shape.d_model} wide, heads of {shape.d_head}, position {shape.position}",
        "key/value head": f"{row.kv_head} of {shape.n_kv_heads}",
        "attention scale": f"{factors.scale:.6g} (not in the factors)",
        "query/key norm": "gain in the pattern, scale per token" if factors.query_gain is not None else "none",
        "parity": "not measured from weights alone: `mechview doctor` and `mechview heads --parity` run the model",
    }
    return facts(about, factors.label) + table(("", "pattern", "message", "null"), _sides(found, row, factors))


def _sides(found: Any, row: Any, factors: Any) -> list[tuple[Any, ...]]:
    from mechview.heads.files import side_maps
    from mechview.heads.table import MEASURES

    maps = [side_maps(factors, side, row.offset)[0] for side in ("pattern", "message")]
    rows: list[tuple[Any, ...]] = [
        (name.replace("_", " "), measure(row.pattern_values), measure(row.message_values), _null(found.nulls[name]))
        for name, measure in MEASURES.items()
    ]
    rows.append(("symmetry tr(MM)/‖M‖²", *(low.symmetry() for low in maps), "-"))
    rows.append(("trace", *(low.trace() for low in maps), "-"))
    count = min(LONGEST, len(row.message_values))
    return rows + [(f"σ {n}", float(row.pattern_values[n]), float(row.message_values[n]), "-") for n in range(count)]


def _null(null: Any) -> str:
    return f"{null.mean:.4g} ± {null.sd:.2g}" if null.n else "-"


def spectrum_text(side: str, found: Any) -> str:
    """Singular values of one head, or the largest of each head."""
    title = f"{side}: {_title(found)}"
    if len(found.rows) == 1:
        return table(("index", "σ", "share of ‖M‖²", "so far"), _spectrum(found.rows[0].values(side)), title)
    count = min(8, len(found.rows[0].values(side)))
    rows = [(row.label, *(float(value) for value in row.values(side)[:count])) for row in found.rows]
    return table(("head", *(f"σ {n}" for n in range(count))), rows, title)


def _spectrum(values: Any) -> list[tuple[Any, ...]]:
    squares = values.double().square()
    total = float(squares.sum())
    shares = (squares / total if total else squares).tolist()
    so_far = 0.0
    rows = []
    for n, (value, share) in enumerate(zip(values.tolist(), shares, strict=True)):
        so_far += share
        rows.append((n, value, share, so_far))
    return rows
