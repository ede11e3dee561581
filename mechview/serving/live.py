"""One model, and the report of whatever prompt is typed: weights and roles are worked out once, prompts as they come.

Passes run one at a time, since they share the module and its hooks; who waits too long is told so.
"""

from __future__ import annotations

import threading
from typing import Any

from mechview.errors import PromptError
from mechview.manifest import recorded
from mechview.reporting.build import fitted
from mechview.reporting.gather import Known, gather, know

MAX_TOKENS = 512
MAX_BYTES = 20_000_000
PATIENCE_S = 60.0
NO_CHOICE: dict[str, Any] = {"layers": None, "heads": None}


class Busy(Exception):
    """Another prompt has been running for as long as one waits."""


class Live:
    """A model with what does not depend on the prompt.

    Args:
        roles: look for roles of heads, as in `mv.report`.
        max_tokens: longest prompt taken.
    """

    def __init__(
        self, model: Any, *, roles: bool | None = None, fold: bool = True, max_tokens: int = MAX_TOKENS
    ) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.settings = {
            "fold": fold,
            "offset": 0,
            "bos": "auto",
            "keep_text": True,
            "roles": roles,
            "thresholds": None,
        }
        self._one = threading.Lock()
        self._known: Known | None = None

    def page(self, prompt: str, bos: str) -> str:
        """The report of one prompt, as HTML.

        Raises:
            MechviewError: the prompt cannot be read, or is too long.
            Busy: the model did not become free.
        """
        from mechview.models.tracing import encode

        count = len(encode(self.model, prompt, bos))
        if count > self.max_tokens:
            raise PromptError(f"the prompt has {count} tokens; this server takes {self.max_tokens} (--max-tokens)")
        if not self._one.acquire(timeout=PATIENCE_S):
            raise Busy
        try:
            settings = self.settings | {"bos": bos}
            with recorded() as run:
                return fitted(gather(self.model, [prompt], NO_CHOICE, settings, run, known=self.known()), MAX_BYTES)
        finally:
            self._one.release()

    def known(self) -> Known:
        """Weights and roles, worked out when they are first asked for."""
        if self._known is None:
            self._known = know(self.model, NO_CHOICE, self.settings, run=True)
        return self._known
