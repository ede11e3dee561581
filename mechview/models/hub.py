"""Hub names: from the local cache, or downloaded; with no network, an answer in seconds.

The hub client retries for minutes when names cannot be resolved. So the network is asked once, with a
short limit; when it does not answer, the newest cached snapshot is used (and the pinned commit said).
"""

from __future__ import annotations

import warnings
from pathlib import Path

from mechview.errors import ModelError

ASK_SECONDS = 5.0
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")


def hub_folder(name: str, revision: str | None, offline: bool) -> tuple[Path, str]:
    """A local snapshot of a hub model and its commit.

    Raises:
        ModelError: not in the cache and not reachable, or no such model or revision.
    """
    commit, weights = (None, ()) if offline else _ask(name, revision)
    if commit is not None:
        return _download(name, commit, weights), commit
    cached = _cached(name, revision)
    if cached is None:
        reason = "and offline mode is on (--offline or HF_HUB_OFFLINE)" if offline else "and the hub cannot be reached"
        raise ModelError(f"{name} (revision {revision or 'main'}) is not bundled, is not in the local cache, {reason}")
    if not offline:
        warnings.warn(f"the hub cannot be reached; using the cached {name} at {cached.name}", stacklevel=2)
    return cached, cached.name


def _ask(name: str, revision: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Commit and weight files according to the hub; no commit when it cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled

    try:
        info = HfApi().model_info(name, revision=revision, timeout=ASK_SECONDS)
    except GatedRepoError:
        raise ModelError(f"{name} is gated: accept its terms on the hub and log in (HF_TOKEN)") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status < 500:
            raise ModelError(f"the hub has no model {name} at revision {revision or 'main'} ({status})") from None
        return None, ()
    except (OSError, _transport_error(), OfflineModeIsEnabled):
        return None, ()
    files = tuple(file.rfilename for file in info.siblings or ())
    safe = tuple(f for f in files if f.endswith(".safetensors") and "/" not in f)
    return info.sha, safe or tuple(f for f in files if f.startswith("pytorch_model") and f.endswith(".bin"))


def _download(name: str, commit: str, weights: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=[*SMALL_FILES, *weights]))
    except (OSError, _transport_error()) as error:
        raise ModelError(f"downloading {name} failed: {error}") from None


def _transport_error() -> type[Exception]:
    """What the hub client raises without a network: its HTTP library's own error, which changed with versions."""
    from huggingface_hub import errors

    found: type[Exception] = vars(errors)["HTTPError"]
    return found


def _cached(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        return None
    return folder if (folder / "config.json").is_file() else None
