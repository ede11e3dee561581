"""The command line: parse, call one function, write. `mechview VERB [MODEL] [options]`.

Data goes to stdout, progress and warnings to stderr. Exit codes: 0 done, 1 a check failed, 2 bad usage,
3 model not readable, 4 partial, 130 interrupted, 141 the reader of stdout went away. An error mechview
expects is one line without a traceback. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mechview.cli import changes, export, lists, memory, passes, patching, roles, serve, spin, stream, weights, why
from mechview.cli.output import Closed, say
from mechview.cli.words import one_line
from mechview.errors import MechviewError

INTERRUPTED, READER_GONE = 130, 141

app = typer.Typer(
    name="mechview",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
# typer carries its own copy of click in some versions; its base class of usage errors is found by name
USAGE = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def print_version(asked: bool | None) -> None:
    if asked:
        from mechview.version import __version__

        say(f"mechview {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit."),
    ] = None,
) -> None:
    """See what the heads of a transformer do: where each looks (pattern) and what it sends (message).

    MODEL is a bundled name (toy, the default), a hub name, a Hugging Face folder, a .gguf file, or
    package:NAME for weights inside an installed Python package.
    """


for verb in (
    passes.doctor,
    lists.models,
    *weights.VERBS,
    passes.attend,
    roles.roles,
    stream.resid,
    stream.lens,
    why.why,
    lists.prompts,
    changes.compare,
    changes.ablate,
    patching.patch,
    spin.spin,
    memory.memory,
    passes.report,
    serve.serve,
    export.export,
    lists.schema,
):
    app.command()(verb)


def run(arguments: Sequence[str]) -> int:
    """The exit code of `mechview` with these arguments."""
    command = typer.main.get_command(app)
    try:
        code = command.main(list(arguments) or ["--help"], prog_name="mechview", standalone_mode=False)
        return _complain("interrupted", INTERRUPTED) if code == INTERRUPTED else int(code or 0)
    except MechviewError as error:
        return _complain(str(error), error.exit_code)
    except USAGE as error:
        return _complain(error.format_message(), error.exit_code)  # type: ignore[attr-defined]
    except Closed:
        return READER_GONE
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except MemoryError:
        return _complain("this machine has not enough memory for that", 1)


def _complain(sentence: str, code: int) -> int:
    print(f"mechview: {one_line(sentence)}", file=sys.stderr)
    return code


def main() -> None:
    """Run the command line of this process and exit."""
    for channel in (sys.stdout, sys.stderr):
        if hasattr(channel, "reconfigure"):
            channel.reconfigure(errors="backslashreplace")  # a terminal that cannot show a token still gets the rest
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty() or {"-q", "--quiet"} & set(sys.argv):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    code = run(sys.argv[1:])
    if code == READER_GONE:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains as it exits
    sys.exit(code)
