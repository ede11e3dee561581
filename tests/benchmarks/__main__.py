"""`python -m tests.benchmarks [REPEATS] [--threads 2] [--only attribution]`: times, errors and memory against the
original library, in a table. Wall time stands beside the processor's own, which a busy machine changes less."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch

from tests.benchmarks.attribution import bench, peaks, races
from tests.benchmarks.composing import circuits, report
from tests.benchmarks.factors import compare, conditions, tasks

STARTS = {"import mechview": ["-c", "import mechview"], "mechview --help": ["-m", "mechview", "--help"]}


def factors(repeats: int) -> None:
    print(f"{'task':<18}{'theirs, ms':>12}{'ours, ms':>12}{'ratio':>8}{'their error':>14}{'our error':>12}")
    for name, task in tasks().items():
        row = compare(name, task, repeats=repeats)
        times = f"{1e3 * row.their_seconds:>12.1f}{1e3 * row.our_seconds:>12.1f}{row.ratio:>8.1f}"
        print(f"{name:<18}{times}{row.their_error:>14.1e}{row.our_error:>12.1e}", flush=True)


def attribution(repeats: int) -> None:
    theirs, ours = peaks(bench())
    print(f"extra peak memory of attribution: {theirs / 1e6:.0f} MB, {ours / 1e6:.1f} MB, ratio {theirs / ours:.0f}")
    print(f"{'task':<28}{'theirs, ms':>12}{'ours, ms':>10}{'ratio':>8}{'of pairs':>10}{'of processor time':>19}")
    for name, run in races(repeats).items():
        times = f"{1e3 * min(run.theirs):>12.0f}{1e3 * min(run.ours):>10.0f}{run.ratio:>8.2f}"
        print(f"{name:<28}{times}{run.median_ratio:>10.2f}{run.processor_ratio:>19.2f}", flush=True)


def composition(repeats: int) -> None:
    report(min(repeats, 3))
    circuits()


def pages(repeats: int) -> None:
    from tests.benchmarks.pages import openings

    print(f"{'tokens':<10}{'MB':>6}{'interactive, s':>16}{'first card, s':>15}{'elements':>10}")
    for one in openings(repeats):
        print(
            f"{one.length:<10}{one.megabytes:>6.1f}{one.interactive:>16.2f}{one.card:>15.2f}{one.nodes:>10}", flush=True
        )


def starts(repeats: int) -> None:
    for name, arguments in STARTS.items():
        print(f"{name:<30}{best_seconds(arguments, repeats):>8.2f} s, best of {repeats} (against bare python)")


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
    parts = {
        "factors": factors,
        "attribution": attribution,
        "composition": composition,
        "starts": starts,
        "pages": pages,
    }
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("repeats", type=int, nargs="?", default=7)
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--only", choices=list(parts))
    chosen = asked.parse_args()
    torch.set_num_threads(chosen.threads)
    print(conditions())
    for part in [chosen.only] if chosen.only else parts:
        parts[part](chosen.repeats)
    print(conditions())
