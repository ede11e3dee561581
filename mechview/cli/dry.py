"""`--dry-run`: what a verb would cost, from the configuration and the tokenizer alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mechview.cli.output import Output, emit, of_result
from mechview.cli.show import facts


def show_cost(verb: str, model: Any, prompts: Sequence[Any], bos: str, run: Any, to: Output, **asked: Any) -> int:
    """Print or write the estimate for these prompts; exit code 0. Prompts are read as the verb would read them."""
    from mechview.manifest import manifest
    from mechview.models.tracing import encode
    from mechview.residual.cost import estimate

    donors = [encode(model, prompt, bos) for prompt in asked.pop("donors", None) or ()]
    found = estimate(model, [encode(model, prompt, bos) for prompt in prompts], verb, donors=donors, **asked)
    about = lambda: manifest(model, run, hashed=False, verb=verb, dry_run=True)  # noqa: E731
    emit(of_result("cost", found, lambda: cost_text(found), about), to)
    return 0


def show_set_cost(verb: str, model: Any, cases: Sequence[Any], bos: str, run: Any, to: Output, **asked: Any) -> int:
    """The same for a verb that runs over a set, a case at a time."""
    from mechview.manifest import manifest
    from mechview.models.tracing import encode
    from mechview.residual.cost import estimate_each

    def of_case(case: Any) -> tuple[list[Any], dict[str, Any]]:
        own = encode(model, case.prompt, bos)
        other = [] if case.corrupted is None else [encode(model, case.corrupted, bos)]
        if verb == "patch":
            return [own, *other], asked
        return [own], asked | {"donors": other if asked.get("method") == "resample" else []}

    found = estimate_each(model, [of_case(case) for case in cases], verb)
    about = lambda: manifest(model, run, hashed=False, verb=verb, dry_run=True)  # noqa: E731
    emit(of_result("cost", found, lambda: cost_text(found), about), to)
    return 0


def cost_text(found: Any) -> str:
    """Facts in units people use."""
    many = len(found.tokens)
    longest = f", the longest {max(found.tokens)}" if many else ": weights alone are read"
    tokens = f"{sum(found.tokens)} in {many} prompt{'' if many == 1 else 's'}{longest}"
    about = {
        "tokens": tokens,
        "forward passes": found.passes,
        "operations": f"{found.flops:.3g} in matrix products",
        "peak bytes": f"{size(found.peak_bytes)}, without the libraries themselves",
        "of these weights": size(found.weight_bytes),
        "traces": size(found.trace_bytes),
        "a pass, for a moment": size(found.transient_bytes),
        "the answer": size(found.answer_bytes),
    }
    return facts(about, f"{found.verb} {found.model} would cost (nothing was run)")


def size(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
