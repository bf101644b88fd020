"""Logins of registries, kept where Docker keeps them: ``~/.docker/config.json`` and its credential helpers.

Whoever has logged in with ``docker login`` is logged in here, and the other way round. A secret goes to a helper
through its standard input, and into the file with the mode 0600; nothing here puts one into an argument, a log or
the text of an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l2rtui.backends.privatefile import write_private
from l2rtui.domain.imageref import HUB
from l2rtui.errors import BackendError, ConfigError

_HUB_KEY = "https://index.docker.io/v1/"
_HELPER_SECONDS = 60.0
_TOKEN_USER = "<token>"  # noqa: S105  (Docker's mark for an identity token)


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are to a registry.

    Attributes:
        is_token: ``secret`` is an identity token (OAuth2's refresh token) and no password.
    """

    user: str
    secret: str = field(repr=False)
    is_token: bool = False

    @property
    def basic(self) -> str:
        """What HTTP's ``Authorization: Basic`` carries."""
        return base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def config_path() -> Path:
    """Docker's file with logins."""
    folder = os.environ.get("DOCKER_CONFIG", "")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def find_login(registry: str) -> Login | None:
    """The login for a registry, from its helper or the file; None where nobody has logged in.

    Raises:
        ConfigError: the file cannot be read. BackendError: a helper fails.
    """
    config = _read()
    key = _key(registry)
    if helper := _helper(config, key):
        return _from_helper(helper, key)
    entry = _table(config, "auths").get(key) or _table(config, "auths").get(f"https://{key}")
    if not isinstance(entry, dict):
        return None
    if token := entry.get("identitytoken"):
        return Login(str(entry.get("username") or _TOKEN_USER), str(token), is_token=True)
    if "password" in entry:
        return Login(str(entry.get("username", "")), str(entry["password"]))
    try:
        user, colon, secret = base64.b64decode(str(entry.get("auth") or ""), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise ConfigError(
            f"The login for {registry} in {config_path()} cannot be read.", f"Do `l2rtui image login {registry}`."
        ) from None
    return Login(user, secret.rstrip("\0")) if colon else None


def keep_login(registry: str, login: Login) -> str:
    """Keep a login where Docker looks for it; say where that is.

    Raises:
        ConfigError: the file cannot be read or written. BackendError: the helper refuses.
    """
    config = _read()
    key = _key(registry)
    if helper := _helper(config, key):
        entry = {"ServerURL": key, "Username": login.user, "Secret": login.secret}
        _call(helper, "store", json.dumps(entry))
        return f"docker-credential-{helper}"
    auths = dict(_table(config, "auths"))
    auths[key] = {"auth": login.basic}
    _write({**config, "auths": auths})
    return str(config_path())


def auth_document(registry: str, login: Login) -> dict[str, Any]:
    """What a Secret of the type kubernetes.io/dockerconfigjson holds."""
    entry = {"username": login.user, "password": login.secret, "auth": login.basic}
    return {"auths": {_key(registry): entry}}


# --- the file -------------------------------------------------------------------------------------------------


def _key(registry: str) -> str:
    return _HUB_KEY if registry == HUB else registry


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _read() -> dict[str, Any]:
    path = config_path()
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError:
        raise ConfigError(f"{path} is not JSON.", "Correct it, or move it away and log in again.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no settings.", "Move it away and log in again.")
    return found


def _write(config: Mapping[str, Any]) -> None:
    """Put another file in place at once, readable by nobody else; a link (to a dotfiles folder) stays a link."""
    path = config_path().resolve()
    try:
        write_private(path, json.dumps(config, indent="\t"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


# --- helpers --------------------------------------------------------------------------------------------------


def _helper(config: Mapping[str, Any], key: str) -> str:
    name = str(_table(config, "credHelpers").get(key) or config.get("credsStore") or "")
    if name and not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"{config_path()} names a credential helper {name!r}, which is no name of a program.")
    return name


def _from_helper(helper: str, key: str) -> Login | None:
    answer = _call(helper, "get", key)
    if answer is None:
        return None
    try:
        found = json.loads(answer)
        user, secret = str(found["Username"]), str(found["Secret"])
    except (ValueError, KeyError, TypeError):
        raise BackendError(f"docker-credential-{helper} gave an answer that is no login.") from None
    return Login(user, secret, is_token=user == _TOKEN_USER)


def _call(helper: str, verb: str, text: str) -> str | None:
    """Ask a helper; None when it says that it has nothing."""
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, verb], input=text, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=False
        )
    except FileNotFoundError:
        raise BackendError(
            f"{config_path()} wants {program}, which is not installed.", "Install it, or take it out of that file."
        ) from None
    except subprocess.TimeoutExpired:
        raise BackendError(f"{program} gave no answer within {_HELPER_SECONDS:g} s.") from None
    if done.returncode == 0:
        return done.stdout
    # What a helper writes may hold the secret that it was given: only its refusal to know one is read.
    if verb == "get" and "credentials not found" in f"{done.stdout}{done.stderr}":
        return None
    raise BackendError(
        f"{program} {verb} failed with exit code {done.returncode}.", "Log in with Docker itself once."
    )
