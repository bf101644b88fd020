"""Tokens of an OpenID Connect user in a kubeconfig: read again, and written back under kubectl's own lock.

Only the scalars of that user's ``auth-provider`` are edited, which are found by parsing the file: comments, order
and other users stay. The library's reader saves nothing (its ``config_persister`` is the result of a call, None:
kubernetes/aio/config/kube_config.py at 37.0.1), so a provider that rotates refresh tokens locks kubectl out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from l2rtui.backends.kubernetes.api.kubeconfig import Oidc
from l2rtui.backends.kubernetes.api.login import login_error
from runtime.base.atomic_files import write_atomic

_LOCK_SECONDS = 5.0
"""Longest wait for another writer; kubectl holds the lock for the milliseconds of a write."""
_POLL_SECONDS = 0.05
_KEYS = ("id-token", "refresh-token")


def stored_tokens(oidc: Oidc) -> Oidc:
    """Return the settings with the tokens that are now in the file; unchanged if they cannot be read."""
    try:
        scalars = _token_scalars(_read(oidc), oidc.user)
    except (OSError, ValueError, yaml.YAMLError):
        return oidc  # the tokens read at the start are the best available
    values = {key: node.value for key, node in scalars.items()}
    return replace(
        oidc,
        id_token=values.get("id-token", oidc.id_token),
        refresh_token=values.get("refresh-token") or oidc.refresh_token,
    )


async def store_tokens(oidc: Oidc) -> None:
    """Write both tokens into the file that they came from.

    Raises:
        ApiError: The file cannot be written, is locked, or no longer contains the user.
    """
    # In a thread, as it may wait for the lock. It continues when we are cancelled: the file is never half written.
    await asyncio.to_thread(_store, oidc)


def _store(oidc: Oidc) -> None:
    path = Path(oidc.source)
    try:
        with _locked(path):
            changed = _edited(_read(oidc), oidc)
            mode = path.stat().st_mode & 0o777
            # A kubeconfig is often a symbolic link: its target is replaced, and the link stays.
            write_atomic(path.resolve(), changed.encode(), is_shared=True, mode=mode)
    except FileExistsError as error:
        raise login_error(
            f"The new refresh token cannot be written to {path}: {path}.lock is there.",
            "Remove that file if no kubectl is running.",
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        cause = (error.strerror if isinstance(error, OSError) else "") or "its user is no longer there"
        raise login_error(
            f"The new refresh token cannot be written to {path}: {cause}.", "Make the file writable."
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of client-go (``lockFile`` in clientcmd): a file next to the kubeconfig, created exclusively.

    client-go gives up immediately if it exists; we wait briefly, since a rotated token exists nowhere else.
    """
    lock, until = Path(f"{path}.lock"), time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0))
            break
        except FileExistsError:
            if time.monotonic() >= until:
                raise
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _read(oidc: Oidc) -> str:
    return Path(oidc.source).read_bytes().decode()  # no translation of line ends: marks count characters


def _edited(text: str, oidc: Oidc) -> str:
    """Replace the values of both tokens; ValueError if the user or its refresh token is not in the text."""
    scalars = _token_scalars(text, oidc.user)
    if "refresh-token" not in scalars:
        raise ValueError(oidc.user)
    values = {"id-token": oidc.id_token, "refresh-token": oidc.refresh_token}
    # From the last to the first, so that the marks of earlier values stay valid.
    for key, node in sorted(scalars.items(), key=lambda item: -item[1].start_mark.index):
        # A JSON string is a YAML double-quoted scalar, in block and in flow style.
        start, end = node.start_mark.index, node.end_mark.index
        line_end = "\n" if text[start:end].endswith("\n") else ""  # a block scalar ends with its line
        text = text[:start] + json.dumps(values[key]) + line_end + text[end:]
    # An unforeseen form (an anchor on the value) must not damage the file.
    if {key: node.value for key, node in _token_scalars(text, oidc.user).items()} != {
        key: values[key] for key in scalars
    }:
        raise ValueError(oidc.user)
    return text


def _token_scalars(text: str, user: str) -> dict[str, yaml.ScalarNode]:
    """Return the scalars of a user's tokens by key, with their positions; the first user of a name counts.

    Raises:
        ValueError: The user does not exist. YAMLError: The text is not valid YAML.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # not the C loader: its marks count bytes
    for entry in _items(_value(root, "users")):
        if isinstance(name := _value(entry, "name"), yaml.ScalarNode) and name.value == user:
            config = _value(_value(_value(entry, "user"), "auth-provider"), "config")
            values = {key: _value(config, key) for key in _KEYS}
            return {key: node for key, node in values.items() if isinstance(node, yaml.ScalarNode)}
    raise ValueError(user)


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return the value of a key of a mapping; None without one."""
    if not isinstance(node, yaml.MappingNode):
        return None
    pairs = (value for name, value in node.value if isinstance(name, yaml.ScalarNode) and name.value == key)
    return next(pairs, None)


def _items(node: yaml.Node | None) -> Iterator[yaml.Node]:
    yield from node.value if isinstance(node, yaml.SequenceNode) else ()
