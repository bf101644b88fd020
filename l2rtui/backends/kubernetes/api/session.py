"""Session of the official client library for one server and one client certificate.

Its ``ApiClient`` builds every request, and its pool sends them all: reads, writes, watches and websockets. TLS,
server name and proxy come from its ``Configuration``, the login from its refresh hook. Its generated half
(``client.api`` and ``client.models``) is not used: typed objects take forty times as long to decode and 1.1 s of
CPU to import, and one malformed item fails the whole list. Response bodies stay bytes; ``structs`` decodes the
watched kinds.

This module adds features that the library lacks: sockets with keep-alive, the client key without a file that
outlives its loading, SOCKS, and no redirects.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from multidict import CIMultiDict

from l2rtui import __version__
from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from l2rtui.backends.kubernetes.api.proxies import http_proxy, make_connector
from l2rtui.backends.kubernetes.api.sockets import OpenSockets
from l2rtui.errors import ConfigError

FIELD_MANAGER: Final = "l2rtui"
"""Owner of the fields that we write (server-side apply), and the product in the ``User-Agent`` header."""
AUTH: Final = "BearerToken"
"""Name of the library's security scheme; its value is the whole ``Authorization`` header, Bearer or Basic."""
_SENDINGS: Final[ContextVar[list[str] | None]] = ContextVar("sendings", default=None)
LoginHook = Callable[[Configuration], Awaitable[None]]


class RedirectError(aiohttp.ClientError):
    """The server sent a redirect, which is not followed.

    Attributes:
        status: HTTP status. location: Target of the redirect.
    """

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.location = location


def make_client(
    access: Access,
    login: ApiLogin,
    *,
    proxy: str,
    hook: LoginHook,
    sockets: OpenSockets,
    headers: Mapping[str, str],
) -> ApiClient:
    """Create a client of the library with its pool, which opens connections when they are needed.

    Args:
        proxy: URL of the proxy; empty for none.
        sockets: Creates and tracks the sockets of the pool.
        hook: Sets ``api_key`` of the configuration to the current login; called for every request.
        headers: Sent with all requests, after the impersonation headers.

    Raises:
        ConfigError: The authority's certificate cannot be used.
        ApiError: The client's certificate and key cannot be used.
    """
    configuration = make_configuration(access, proxy, hook)
    try:
        client = ApiClient(configuration)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"The certificate authority of the context {access.context} is no PEM.") from error
    tls: ssl.SSLContext = client.rest_client.ssl_context
    if login.certificate:
        load_certificate(tls, login, access.user.name)
    client.user_agent = f"{FIELD_MANAGER}/{__version__}"
    configuration.client_session_kwargs = {
        # An attribute of the session, as the library's own headers are a dict: Impersonate-Group may occur
        # repeatedly.
        "headers": CIMultiDict([*access.user.impersonate, *headers.items()]),
        "connector": make_connector(
            proxy,
            tls=tls,
            limit=0,
            keepalive_timeout=60,
            socket_factory=sockets.make,
            on_tunnel=sockets.adopt,
        ),
        "read_bufsize": 1 << 18,  # four times aiohttp's default: fewer wake-ups for pages of megabytes
        "trust_env": False,  # True would read ~/.netrc, and choose proxies by other rules than kubectl
    }
    return client


def make_configuration(access: Access, proxy: str, hook: LoginHook) -> Configuration:
    """Translate a context into the library's configuration."""
    try:
        authority = access.ca.decode("ascii") or None
    except UnicodeDecodeError as error:
        raise ConfigError(f"The certificate authority of the context {access.context} is no PEM.") from error
    configuration = Configuration(
        access.server,
        api_key={AUTH: ""},  # without an entry the library would not call the hook
        ca_cert_data=authority,
        verify_ssl=not access.is_insecure,
        tls_server_name=access.tls_server_name or None,
        proxy=http_proxy(proxy),
        trace_configs=[_no_redirects(), _sendings()],
    )
    # Python 3.13 checks strictly (RFC 5280), and many clusters' own authorities lack the Authority Key Identifier.
    configuration.disable_strict_ssl_verification = True
    configuration.refresh_api_key_hook = hook  # type: ignore[assignment]
    return configuration


def session_of(client: ApiClient) -> aiohttp.ClientSession:
    """Return the pool of a client, which the library creates with its first request.

    Used for websockets: the library's own ``WsApiClient`` accesses the pool in the same way, but ignores proxy and
    server name, and has no port-forward.
    """
    rest = client.rest_client
    if rest.pool_manager is None:
        rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001
    return rest.pool_manager


async def close_client(client: ApiClient) -> None:
    """Close a client and its connections; the library does not close a connector that was passed in."""
    await client.close()  # type: ignore[no-untyped-call]
    await client.configuration.client_session_kwargs["connector"].close()


def _no_redirects() -> aiohttp.TraceConfig:
    """Return a trace that ends a request at its first redirect: the library cannot disable redirects.

    A redirect would send impersonation headers and the client certificate to a server that the kubeconfig does not
    name.
    """

    async def refuse(_session: object, _context: SimpleNamespace, params: Any) -> None:
        params.response.close()
        raise RedirectError(params.response.status, params.response.headers.get("Location", ""))

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return trace


@contextmanager
def counted_sendings() -> Iterator[list[str]]:
    """Record each sending of a request in the block: a second entry is a repetition by aiohttp.

    aiohttp repeats an idempotent request once when its connection broke (RFC 9110, 9.2.2), and returns only the
    response to the repetition: 404 for an object that the first try has deleted.
    """
    sendings: list[str] = []
    token = _SENDINGS.set(sendings)
    try:
        yield sendings
    finally:
        _SENDINGS.reset(token)


def _sendings() -> aiohttp.TraceConfig:
    async def record(_session: object, _context: SimpleNamespace, params: Any) -> None:
        if (sendings := _SENDINGS.get()) is not None:
            sendings.append(params.method)

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(record)
    return trace


def load_certificate(tls: ssl.SSLContext, login: ApiLogin, user: str) -> None:
    """Load the login's client certificate and key into a TLS context.

    The library only accepts paths, and writes keys of a kubeconfig to files in /tmp that stay until the process
    ends (kubernetes/aio/config/kube_config.py, ``_create_temp_file_with_content``). Here the file is anonymous
    memory (Linux), or is in a folder of mode 0700 that is removed immediately.

    Raises:
        ApiError: They cannot be used.
    """
    try:
        _load(tls, login.certificate.rstrip() + b"\n" + login.key)
    except (ssl.SSLError, OSError) as error:
        raise login_error(
            f"The client certificate and key of {user} cannot be used: {error.args[-1]}.",
            "Write the kubeconfig again.",
        ) from error


def _load(tls: ssl.SSLContext, pem: bytes) -> None:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("l2rtui", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, pem)
            # An empty password: OpenSSL would ask for one on the terminal if the key is encrypted.
            tls.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="l2rtui-") as folder:  # mode 0700
        path = Path(folder) / "login.pem"
        path.touch(mode=0o600)
        path.write_bytes(pem)
        tls.load_cert_chain(path, password="")
