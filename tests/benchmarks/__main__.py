"""`python -m tests.benchmarks [REPEATS [THREADS]]`: a table of time ratios and errors against the original library."""

from __future__ import annotations

import sys

import torch

from tests.benchmarks.factors import compare, conditions, tasks


def main(repeats: int) -> None:
    print(conditions())
    print(f"{'task':<18}{'theirs, ms':>12}{'ours, ms':>12}{'ratio':>8}{'their error':>14}{'our error':>12}")
    for name, task in tasks().items():
        row = compare(name, task, repeats=repeats)
        times = f"{1e3 * row.their_seconds:>12.1f}{1e3 * row.our_seconds:>12.1f}{row.ratio:>8.1f}"
        print(f"{name:<18}{times}{row.their_error:>14.1e}{row.our_error:>12.1e}", flush=True)
    print(conditions())


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    main(repeats=int(sys.argv[1]) if len(sys.argv) > 1 else 7)
