"""The verb `serve`: a page on this machine to type prompts into."""

from __future__ import annotations

from typing import Annotated

import typer

from mechview.cli import options as o
from mechview.cli.asked import open_model
from mechview.cli.output import note, say, working

Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 for any free one.", metavar="N")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, max=4096, help="Longest prompt taken.", metavar="N")]


def serve(
    model: o.ModelName = "toy", port: Port = 0, max_tokens: MaxTokens = 512, roles: o.RoleFlag = None,
    fold: o.Fold = True, revision: o.Revision = None, dtype: o.DtypeName = o.Dtype.float32, device: o.Device = "cpu",
    offline: o.Offline = False, quiet: o.Quiet = False,
) -> int:  # fmt: skip
    """A page on this machine: type a prompt, see heads, stream and lens on it.

    It prints its address, which holds a random token, and answers only to this machine. Ctrl + C ends it.
    """
    with working(f"opening {model}", quiet):
        from mechview.serving.run import serve as run

        opened = open_model(model, revision, offline, device, dtype)

    def tell(address: str) -> None:
        say(f"{address}\n")
        note("open this address in a browser on this machine; Ctrl + C ends the server", quiet)

    run(opened, port=port, roles=roles, fold=fold, max_tokens=max_tokens, tell=tell)
    return 0
