"""Who may ask, and what is answered: two addresses behind a random token, for this machine's browser alone.

Rules, each tested: the Host header names the loopback interface and this port (no rebinding of names); a prompt is
posted from this page's own origin; every address starts with the token; bodies are counted as they come and cut off;
answers are not cached, not framed by others, and send no address on. The report stands in a sandboxed frame without
an origin of its own, beside its own content security policy.
"""

from __future__ import annotations

import secrets
from importlib import resources
from urllib.parse import parse_qs

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from mechview.errors import MechviewError
from mechview.reporting.page import source_hash
from mechview.serving.live import Busy, Live

MAX_BODY = 64 * 1024
BOS = ("auto", "yes", "no")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # without any, browsers post with the origin "null"
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Refused(Exception):
    """A request that is not answered, with its status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def make_app(live: Live, port: int, token: str) -> Starlette:
    """The application for one model on one port of the loopback interface."""
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    def check(request: Request) -> None:
        if request.headers.get("host", "").lower() not in hosts:
            raise Refused(421, "this server answers for the loopback interface only")
        if not secrets.compare_digest(request.path_params["token"].encode(), token.encode()):
            raise Refused(404, "there is nothing here")

    async def shell(request: Request) -> Response:
        check(request)
        return HTMLResponse(shell_page(live), headers=HEADERS | {"Content-Security-Policy": shell_policy()})

    async def view(request: Request) -> Response:
        check(request)
        if request.headers.get("origin", "").lower() not in {f"http://{host}" for host in hosts}:
            raise Refused(403, "prompts are taken from this server's own page only")
        prompt, bos = read_form(await read_body(request))
        page = await run_in_threadpool(live.page, prompt, bos)
        policy = {"Content-Security-Policy": "sandbox allow-scripts; frame-ancestors 'self'"}
        return HTMLResponse(page.encode("utf-8", "backslashreplace"), headers=HEADERS | policy)

    return Starlette(
        routes=[Route("/{token}/", shell), Route("/{token}/view", view, methods=["POST"])],
        exception_handlers={Refused: refusal, MechviewError: sentence, Busy: busy},
    )


async def read_body(request: Request) -> bytes:
    """The body, as long as it stays within the limit.

    Raises:
        Refused: it is longer, whatever its header says.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise Refused(413, f"a prompt is at most {MAX_BODY} bytes")
    return body


def read_form(body: bytes) -> tuple[str, str]:
    """Prompt and BOS policy of a posted form. Browsers send line ends as CR LF; the prompt has the LF that was typed.

    Raises:
        Refused: not such a form.
    """
    try:
        found = parse_qs(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=4
        )
        (prompt,), (bos,) = found["prompt"], found["bos"]
    except (ValueError, KeyError):
        raise Refused(400, "a form with one prompt and one bos is expected, in UTF-8") from None
    if bos not in BOS:
        raise Refused(400, f"bos is one of {', '.join(BOS)}")
    return prompt.replace("\r\n", "\n"), bos


async def refusal(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else 400
    return PlainTextResponse(str(error), status, headers=HEADERS | {"Connection": "close"})


async def sentence(request: Request, error: Exception) -> Response:
    """What mechview says of a prompt that it cannot show."""
    return PlainTextResponse(str(error), 400, headers=HEADERS)


async def busy(request: Request, error: Exception) -> Response:
    return PlainTextResponse("the model is busy with another prompt; try again", 503, headers=HEADERS)


def shell_page(live: Live) -> str:
    style, script = _style(), _read("shell.js")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_read("shell.html"))
    return template.render(
        model=live.model.name, max_tokens=live.max_tokens, style=Markup(style), script=Markup(script), choices=BOS
    )


def shell_policy() -> str:
    """The page may run its script and style, post to this server, and frame what comes back."""
    return (
        f"default-src 'none'; script-src {source_hash(_read('shell.js'))}; style-src {source_hash(_style())}; "
        "form-action 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'"
    )


def _style() -> str:
    base = resources.files("mechview.reporting").joinpath("page", "base.css").read_text(encoding="utf-8")
    return base + _read("shell.css")


def _read(name: str) -> str:
    return resources.files("mechview.serving").joinpath("page", name).read_text(encoding="utf-8")
