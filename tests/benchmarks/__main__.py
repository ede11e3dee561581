"""`python -m tests.benchmarks [REPEATS [THREADS]]`: a table of time ratios and errors against the original library."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from tests.benchmarks.attribution import bench, peaks, races
from tests.benchmarks.composing import circuits, report
from tests.benchmarks.factors import compare, conditions, tasks

STARTS = {"import mechview": ["-c", "import mechview"], "mechview --help": ["-m", "mechview", "--help"]}


def main(repeats: int) -> None:
    print(conditions())
    print(f"{'task':<18}{'theirs, ms':>12}{'ours, ms':>12}{'ratio':>8}{'their error':>14}{'our error':>12}")
    for name, task in tasks().items():
        row = compare(name, task, repeats=repeats)
        times = f"{1e3 * row.their_seconds:>12.1f}{1e3 * row.our_seconds:>12.1f}{row.ratio:>8.1f}"
        print(f"{name:<18}{times}{row.their_error:>14.1e}{row.our_error:>12.1e}", flush=True)
    for name, run in races(repeats).items():
        times = f"{1e3 * min(run.theirs):>10.0f}{1e3 * min(run.ours):>12.0f}{run.ratio:>8.1f}"
        print(f"{name:<28}{times} (median of pairs {run.median_ratio:.1f})", flush=True)
    theirs, ours = peaks(bench())
    print(f"extra peak memory of attribution: {theirs / 1e6:.0f} MB, {ours / 1e6:.1f} MB, ratio {theirs / ours:.0f}")
    report(min(repeats, 3))
    circuits()
    for name, arguments in STARTS.items():
        print(f"{name:<30}{best_seconds(arguments, repeats):>8.2f} s, best of {repeats} (against bare python)")
    print(conditions())


def best_seconds(arguments: list[str], repeats: int) -> float:
    """Seconds that a fresh process takes beyond a bare interpreter's start."""
    return min(process_seconds(arguments) for _ in range(repeats)) - min(
        process_seconds(["-c", ""]) for _ in range(repeats)
    )


def process_seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    main(repeats=int(sys.argv[1]) if len(sys.argv) > 1 else 7)
