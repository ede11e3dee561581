"""Starting the server: a socket on the loopback interface, an address with a random token, until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import Any

from mechview.errors import UsageError

LOOPBACK = "127.0.0.1"


def bound(port: int) -> socket.socket:
    """A socket on this port of the loopback interface; 0 for any that is free.

    Raises:
        UsageError: the port is taken, or may not be used.
    """
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((LOOPBACK, port))
        opened.listen()  # from now on a browser waits for the server instead of being turned away
    except (OSError, OverflowError) as error:
        opened.close()
        raise UsageError(f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}") from None
    return opened


def serve(
    model: Any,
    *,
    port: int = 0,
    roles: bool | None = None,
    fold: bool = True,
    max_tokens: int = 512,
    tell: Callable[[str], None] = print,
) -> None:
    """Serve a page about this model on the loopback interface until interrupted.

    Args:
        port: 0 for any that is free.
        roles: look for roles of heads, as in `mv.report`.
        max_tokens: longest prompt taken.
        tell: is given the address, which holds the token that lets a browser in.

    Raises:
        UsageError: the port cannot be used, or the extra `serve` is not installed.
    """
    try:
        import uvicorn

        from mechview.serving.app import make_app
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing: install mechview[serve]") from None
    from mechview.serving.live import Live

    live, token = Live(model, roles=roles, fold=fold, max_tokens=max_tokens), secrets.token_urlsafe(24)
    with bound(port) as opened:
        number = opened.getsockname()[1]
        settings = uvicorn.Config(
            make_app(live, number, token), log_level="warning", server_header=False, proxy_headers=False, lifespan="off",
            h11_max_incomplete_event_size=16 * 1024, timeout_keep_alive=5, timeout_graceful_shutdown=3, limit_concurrency=16, ws="none", access_log=False,
        )  # fmt: skip
        tell(f"http://{LOOPBACK}:{number}/{token}/")
        try:
            uvicorn.Server(settings).run(sockets=[opened])
        except KeyboardInterrupt:
            return
