"""Client of a Docker Engine, based on the ``docker`` package: requests, streams, upgraded connections, one error
type.

Requests use the Engine API's own paths (https://docs.docker.com/reference/api/engine/) and return its JSON
unchanged. ``docker`` handles sockets, TLS, ssh, the API version and the build context. Everything here blocks;
``l2rtui.cloud.docker_engine`` is the asyncio version.

The address of the Engine is found in the same order as by the ``docker`` program, so that both always use the same
Engine: DOCKER_HOST, DOCKER_CONTEXT, ``currentContext`` in ``config.json``, the default socket
(https://docs.docker.com/engine/manage-resources/contexts/).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from runtime.base import bounded_json
from runtime.base.installation import install_hint

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


REQUEST_SECONDS: Final = 60.0
BLOCK_BYTES: Final = 1 << 16
FRAME_HEADER_BYTES: Final = 8
STDERR: Final = 2
"""Stream number of a frame; 1 is the standard output."""
CONFLICT: Final = 409
_PROBE_SECONDS: Final = 10.0
_MAX_IDLE_CONNECTIONS: Final = 32


class DockerClient:
    """One Engine; the connection is opened at the first request. Safe to use from several threads."""

    def __init__(self, endpoint: DockerEndpoint | None = None) -> None:
        self.endpoint = endpoint or find_endpoint()
        self._api: Any = None
        self._opening = threading.Lock()

    def request_json(
        self, method: str, path: str, /, *, body: Any = None, seconds: float = REQUEST_SECONDS, **query: Any
    ) -> Any:
        """Send a request; return its response as JSON, None if it is empty. Raises EngineError."""
        raw = self.request(method, path, body=body, seconds=seconds, **query)
        return bounded_json.loads(raw) if raw.strip() else None

    def request(
        self, method: str, path: str, /, *, body: Any = None, seconds: float = REQUEST_SECONDS, **query: Any
    ) -> bytes:
        """Send a request; return the bytes of its response. A body of bytes is an archive, others become JSON."""
        return bytes(self._send(method, path, body, query, (_PROBE_SECONDS, seconds)).content)

    def stream(
        self, path: str, /, *, method: str = "GET", headers: Mapping[str, str] | None = None, **query: Any
    ) -> EngineStream:
        """Open a response that continues until the Engine, or the caller, ends it."""
        timeouts = (_PROBE_SECONDS, None)  # to connect; between two blocks a log may be silent for days
        response = self._send(method, path, None, query, timeouts, headers=headers, is_stream=True)
        return EngineStream(response, self.endpoint)

    def upgrade(self, path: str, body: Any) -> tuple[socket.socket, bytes]:
        """Start a command's streams: the connection carries them. Return it, with the bytes right after its
        head.
        """
        headers, timeouts = {"Connection": "Upgrade", "Upgrade": "tcp"}, (_PROBE_SECONDS, REQUEST_SECONDS)
        response = self._send("POST", path, body, {}, timeouts, headers=headers, is_stream=True)
        try:
            buffered = response.raw._fp.fp  # noqa: SLF001  (as docker's own exec_start)
            # docker's exec_start loses bytes that were read into the buffer together with the head: the first
            # output of a fast command would be lost. Without a timeout, peek returns them and never waits for more.
            buffered.raw._sock.settimeout(0)  # noqa: SLF001
            early = bytes(buffered.peek())
            return socket.socket(fileno=os.dup(buffered.raw.fileno())), early
        finally:
            response.close()

    def build(self, **options: Any) -> Generator[bytes, None, None]:
        """Build an image with ``docker.APIClient.build``; yield blocks of JSON lines."""
        with self._failures("POST", "/build"):
            yield from self._open().build(**options)

    def push(self, name: str, tag: str, auth: Mapping[str, str]) -> EngineStream:
        """Push one tag; a stream of JSON lines. An empty ``auth`` pushes without a login."""
        encoded = base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()
        return self.stream(f"/images/{name}/push", method="POST", headers={"X-Registry-Auth": encoded}, tag=tag)

    def close(self) -> None:
        """Close the idle connections."""
        if self._api is not None:
            self._api.close()

    # --- inside -----------------------------------------------------------------------------------------------
    def _open(self) -> Any:
        with self._opening:
            if self._api is None:
                self._api = _connected(self.endpoint)
            return self._api

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, Any],
        timeouts: tuple[float, float | None],
        *,
        headers: Mapping[str, str] | None = None,
        is_stream: bool = False,
    ) -> Any:
        from requests import Request

        api = self._open()
        payload = {} if body is None else {"data": body} if isinstance(body, bytes) else {"json": body}
        params = {key: json.dumps(value) if isinstance(value, dict) else str(value) for key, value in query.items()}
        url = f"{api.base_url}/v{api.api_version}{path}"
        with self._failures(method, path):
            # With the adapter instead of api.request: a session's cookies, redirects, ~/.netrc and proxies take as
            # long as the request itself, and an Engine uses none of them.
            request = Request(method, url, headers={**api.headers, **(headers or {})}, params=params, **payload)
            send, settings = api.get_adapter(url).send, {"verify": api.verify, "cert": api.cert}
            response = send(request.prepare(), stream=is_stream, timeout=timeouts, **settings)
            if response.status_code >= 400:
                with response:
                    raise _refusal(response.status_code, method, path, response.content)
        return response

    @contextlib.contextmanager
    def _failures(self, method: str, path: str) -> Iterator[None]:
        """Convert the client libraries' exceptions to EngineError."""
        from docker.errors import APIError, DockerException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except EngineError:
            raise
        except APIError as error:
            explanation = str(error.explanation or error).encode()
            raise _refusal(error.status_code or 0, method, path, explanation) from error
        except (DockerException, HTTPError, OSError) as error:  # errors of requests are OSErrors
            raise _unreachable(self.endpoint, error) from error


class EngineStream:
    """Response that is read block by block in one thread, and may be closed from any other."""

    def __init__(self, response: Any, endpoint: DockerEndpoint) -> None:
        self._response = response
        self._endpoint = endpoint
        self._is_started = self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks as they arrive, until the end. Raises EngineError if the connection broke."""
        from urllib3.exceptions import HTTPError

        self._is_started = True
        try:
            # requests asks for gzip, and the Engine compresses archives; logs and events are sent uncompressed.
            yield from self._response.raw.stream(BLOCK_BYTES, decode_content=True)
        except (HTTPError, OSError, ValueError, AttributeError) as error:
            # After a close from outside, http.client fails on its own closed file in one of these ways.
            if not self._is_closed:
                raise _unreachable(self._endpoint, error) from error
        finally:
            self._response.close()

    def close(self) -> None:
        """End the response; a thread that waits for its next block continues immediately."""
        from docker.errors import DockerException
        from docker.types import CancellableStream

        self._is_closed = True
        if not self._is_started:
            self._response.close()
            return
        # close() of a response waits for the thread that reads it. A shutdown of the socket wakes that thread, and
        # docker knows how to reach the socket. This fails if the response has ended, and over ssh: such a stream
        # ends at its next block.
        with contextlib.suppress(DockerException, OSError, AttributeError, NameError):
            CancellableStream(iter(()), self._response).close()


def take_frames(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Remove the complete frames of a multiplexed stream from a buffer; return their stream numbers and
    contents.
    """
    # "Stream format" of the Engine API's attach: stream number, three zeros, length (big-endian, 4 bytes), content.
    frames: list[tuple[int, bytes]] = []
    start = 0
    while start + FRAME_HEADER_BYTES <= len(buffer):
        content = start + FRAME_HEADER_BYTES
        end = content + int.from_bytes(buffer[start + 4 : content], "big")
        if end > len(buffer):
            break
        frames.append((buffer[start], bytes(buffer[content:end])))
        start = end
    del buffer[:start]  # once: removing each frame would move the rest of a large block repeatedly
    return frames


def decode_messages(blocks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream with one on each line."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (bounded_json.loads(line) for line in lines if line.strip())
    if rest.strip():
        yield bounded_json.loads(rest)


def _connected(endpoint: DockerEndpoint) -> Any:
    try:
        from docker.api.client import APIClient
        from docker.errors import DockerException
        from docker.tls import TLSConfig
    except ImportError:
        sentence = "A Docker Engine is reached through Docker's library for Python, which is not installed."
        raise EngineError(0, sentence, install_hint("docker")) from None
    try:
        if endpoint.socket_path:
            # The library leaves the socket of a refused connection open; this one is closed.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_PROBE_SECONDS)
                probe.connect(endpoint.socket_path)
        return APIClient(
            endpoint.url,
            version="auto",
            timeout=int(REQUEST_SECONDS),
            tls=_tls(endpoint, TLSConfig),
            use_ssh_client=True,  # the user's own ssh settings, agent and known hosts, as in the docker program
            max_pool_size=_MAX_IDLE_CONNECTIONS,
        )
    except (DockerException, OSError, ValueError) as error:
        raise _unreachable(endpoint, error) from error


def _tls(endpoint: DockerEndpoint, config: Any) -> Any:
    if not endpoint.tls_dir:
        return False
    authority, certificate, key = (Path(endpoint.tls_dir, name) for name in ("ca.pem", "cert.pem", "key.pem"))
    return config(
        client_cert=(str(certificate), str(key)) if certificate.exists() else None,
        ca_cert=str(authority) if authority.exists() else None,
        verify=endpoint.verifies_tls,
    )


def _refusal(status: int, method: str, path: str, raw: bytes) -> EngineError:
    try:
        message = str(bounded_json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        message = raw.decode("utf-8", "replace")[:300]
    return EngineError(status, f"The Docker Engine refused {method} {path}: {message.strip().rstrip('.')}.")


def _unreachable(endpoint: DockerEndpoint, error: BaseException) -> EngineError:
    """Return the error of a failed connection, with the operating system's text if there is any."""
    name, causes = endpoint.label, list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        hint = "Ask to be put into the group `docker`, or run an Engine of your own (rootless)."
        return EngineError(0, f"You may not use the Docker Engine at {name}.", hint)
    if endpoint.url.startswith("ssh://") and any("paramiko" in str(cause) for cause in causes):
        hint = "Install it: `pip install paramiko`, or forward the Engine's socket: "
        hint += "ssh -L /tmp/docker.sock:/var/run/docker.sock HOST."
        return EngineError(0, f"The Docker Engine at {name} is reached over ssh, which needs paramiko.", hint)
    if any(isinstance(cause, TimeoutError) or "timed out" in str(cause) for cause in causes):
        return EngineError(0, f"The Docker Engine at {name} does not answer.")
    reasons = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror)
    reason = next(reasons, "") or str(error)
    sentence = f"The Docker Engine at {name} cannot be reached: {reason.rstrip('.')}."
    return EngineError(0, sentence, "Start it, or set DOCKER_HOST=unix:///PATH or a Docker context.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
