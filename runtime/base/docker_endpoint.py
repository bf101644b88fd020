"""Address of the Docker Engine: DOCKER_HOST, a Docker context, or the usual Unix socket.

The order is the same as in the ``docker`` program, so that both always use the same Engine: DOCKER_HOST,
DOCKER_CONTEXT, ``currentContext`` in ``config.json``, the default socket
(https://docs.docker.com/engine/manage-resources/contexts/).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from runtime.base import bounded_json

DEFAULT_SOCKET: Final = "/var/run/docker.sock"
_DEFAULT_CONTEXT: Final = "default"


class EngineError(OSError):
    """A Docker Engine refused or did not respond.

    ``status`` is the HTTP status of a refusal, 0 without a response. ``message`` is the sentence, ``hint`` the next
    step as an imperative sentence, empty if there is none.
    """

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint


class DockerEndpoint(Struct, frozen=True):
    """Address of one Engine."""

    url: str
    """``unix:///PATH``, ``tcp://HOST:PORT`` or ``ssh://USER@HOST``."""
    source: str = ""
    """The setting that names it, for messages; empty for the default."""
    tls_dir: str = ""
    """Folder with ``ca.pem``, ``cert.pem`` and ``key.pem``; empty for a connection without TLS."""
    verifies_tls: bool = True
    """The Engine's certificate is checked against ``ca.pem``."""

    @property
    def socket_path(self) -> str:
        """Path of the Unix socket; empty for an Engine with another kind of address."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else ""

    @property
    def label(self) -> str:
        """The address for messages: a Unix socket is shown by its path."""
        return self.socket_path or self.url


def config_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Folder of Docker's client settings: ``config.json``, contexts, certificates."""
    folder = (os.environ if environ is None else environ).get("DOCKER_CONFIG", "")
    return Path(folder) if folder else Path.home() / ".docker"


def find_endpoint(environ: Mapping[str, str] | None = None) -> DockerEndpoint:
    """Return the Engine that the ``docker`` program would use. Raises EngineError for an unreadable context."""
    environ = os.environ if environ is None else environ
    if host := environ.get("DOCKER_HOST", ""):
        verifies = bool(environ.get("DOCKER_TLS_VERIFY"))
        tls_dir = environ.get("DOCKER_CERT_PATH") or (str(config_folder(environ)) if verifies else "")
        return DockerEndpoint(host, "DOCKER_HOST", tls_dir, verifies)
    folder = config_folder(environ)
    name = environ.get("DOCKER_CONTEXT") or _current_context(folder)
    if name != _DEFAULT_CONTEXT:
        return _context_endpoint(folder, name)
    rootless = Path(environ.get("XDG_RUNTIME_DIR", ""), "docker.sock")
    uses_rootless = not Path(DEFAULT_SOCKET).exists() and rootless.is_absolute() and rootless.exists()
    return DockerEndpoint(f"unix://{rootless if uses_rootless else DEFAULT_SOCKET}")


def _current_context(folder: Path) -> str:
    try:
        name = bounded_json.loads((folder / "config.json").read_text("utf-8")).get("currentContext")
    except (OSError, ValueError, AttributeError):  # code that needs the logins in this file reports the problem
        return _DEFAULT_CONTEXT
    return str(name or _DEFAULT_CONTEXT)


def _context_endpoint(folder: Path, name: str) -> DockerEndpoint:
    # docker.context.ContextAPI is not used: without a config.json it looks for contexts in the working directory,
    # and for a missing context it silently returns the default Engine, which may be another machine.
    number = hashlib.sha256(name.encode(errors="replace")).hexdigest()
    path = folder / "contexts" / "meta" / number / "meta.json"
    try:
        endpoint = bounded_json.loads(path.read_text("utf-8"))["Endpoints"]["docker"]
        host, skips_tls = str(endpoint["Host"]), bool(endpoint.get("SkipTLSVerify"))
    except FileNotFoundError:
        sentence = f"There is no Docker context {name} in {folder / 'contexts'}."
        raise EngineError(0, sentence, "See `docker context ls`.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(0, f"The Docker context {name} cannot be read: {error}.", f"Correct {path}.") from error
    certificates = folder / "contexts" / "tls" / number / "docker"
    tls_dir = str(certificates) if certificates.is_dir() else ""
    return DockerEndpoint(host, f"the Docker context {name}", tls_dir, not skips_tls)
