"""Registry logins in Docker's own store: ``~/.docker/config.json`` and credential helpers.

So ``docker login`` and ``l2rtui image login`` share one login. A secret is passed to a helper through its standard
input, and written to the file with mode 0600; it is never part of an argument, a log line or an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l2rtui.domain.imageref import HUB
from l2rtui.errors import BackendError, ConfigError
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private
from runtime.base.docker_client import config_folder

_HUB_KEY = "https://index.docker.io/v1/"
_HELPER_SECONDS = 60.0
_TOKEN_USER = "<token>"  # noqa: S105  (Docker's mark for an identity token)


@dataclass(frozen=True, slots=True)
class Login:
    """Login for one registry."""

    user: str
    secret: str = field(repr=False)
    is_token: bool = False
    """``secret`` is an identity token (OAuth 2.0 refresh token), not a password."""

    @property
    def basic(self) -> str:
        """Credentials for HTTP's ``Authorization: Basic`` (RFC 7617)."""
        return base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def config_path() -> Path:
    """Return the path of Docker's file with logins."""
    return config_folder() / "config.json"


def find_login(registry: str) -> Login | None:
    """Return the login for a registry from its helper or the file; None without one.

    Raises ConfigError if the file cannot be read, BackendError if a helper fails.
    """
    config = _read()
    key = _key(registry)
    # A helper takes precedence: Docker then leaves an empty entry for the registry in the file.
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
        hint = f"Do `l2rtui image login {registry}`."
        raise ConfigError(f"The login for {registry} in {config_path()} cannot be read.", hint) from None
    return Login(user, secret.rstrip("\0")) if colon else None  # Docker pads old entries with zeros


def store_login(registry: str, login: Login) -> str:
    """Store a login in Docker's store; return its file or helper.

    Raises ConfigError if the file cannot be read or written, BackendError if the helper refuses.
    """
    config = _read()
    key = _key(registry)
    if helper := _helper(config, key):
        entry = {"ServerURL": key, "Username": login.user, "Secret": login.secret}
        _call(helper, "store", json.dumps(entry))
        return f"docker-credential-{helper}"
    document = {**config, "auths": {**_table(config, "auths"), key: {"auth": login.basic}}}
    path = config_path().resolve()
    try:
        write_private(path, json.dumps(document, indent="\t"))  # mode 0600
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    return str(config_path())


def auth_document(registry: str, login: Login) -> dict[str, Any]:
    """Return the content of a Secret of type kubernetes.io/dockerconfigjson."""
    entry = {"username": login.user, "password": login.secret, "auth": login.basic}
    return {"auths": {_key(registry): entry}}


# --- the file -------------------------------------------------------------------------------------------------
def _key(registry: str) -> str:
    return _HUB_KEY if registry == HUB else registry


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name)
    return table if isinstance(table, dict) else {}


def _read() -> dict[str, Any]:
    path = config_path()
    try:
        settings = bounded_json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError:
        raise ConfigError(f"{path} is not JSON.", "Correct it, or move it away and log in again.") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} holds no settings.", "Move it away and log in again.")
    return settings


# --- helpers --------------------------------------------------------------------------------------------------
def _helper(config: Mapping[str, Any], key: str) -> str:
    name = str(_table(config, "credHelpers").get(key) or config.get("credsStore") or "")
    # The name becomes part of a program's name: without this check a file could run any path.
    if name and not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"{config_path()} names a credential helper {name!r}, which is not a program name.")
    return name


def _from_helper(helper: str, key: str) -> Login | None:
    if (answer := _call(helper, "get", key)) is None:
        return None
    try:
        entry = bounded_json.loads(answer)
        user, secret = str(entry["Username"]), str(entry["Secret"])
    except (ValueError, KeyError, TypeError):
        raise BackendError(f"docker-credential-{helper} did not return a login.") from None
    return Login(user, secret, is_token=user == _TOKEN_USER)


def _call(helper: str, verb: str, text: str) -> str | None:
    """Run a helper (docker-credential-helpers' protocol); return its output, None if it has no login."""
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, verb], input=text, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=False
        )
    except FileNotFoundError:
        hint = "Install it, or take it out of that file."
        raise BackendError(f"{config_path()} wants {program}, which is not installed.", hint) from None
    except subprocess.TimeoutExpired:
        raise BackendError(f"{program} gave no answer within {_HELPER_SECONDS:g} s.") from None
    if done.returncode == 0:
        return done.stdout
    # A helper's output may contain the secret that it was given: only "credentials not found" is recognised.
    if verb == "get" and "credentials not found" in f"{done.stdout}{done.stderr}":
        return None
    hint = "Log in with Docker itself once."
    raise BackendError(f"{program} {verb} failed with exit code {done.returncode}.", hint)
