"""Proxies as kubectl chooses them: ``proxy-url`` of the kubeconfig, otherwise HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

The rules follow Go's ``golang.org/x/net/http/httpproxy``, which client-go uses. Python's own implementations
(``urllib.request``, and aiohttp's ``trust_env``) do not support networks in NO_PROXY: with ``NO_PROXY=10.0.0.0/8``
they would send a cluster's requests to a proxy that cannot reach it, unlike kubectl.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from l2rtui.errors import ConfigError

_HTTP: Final = ("http", "https")
SOCKS: Final = ("socks5", "socks5h")
_PORTS: Final = {"http": 80, "https": 443}


def environment_proxy(url: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the proxy that the environment names for a URL; empty for none.

    Raises:
        ConfigError: The proxy's scheme is not supported.
    """
    environ = os.environ if environ is None else environ
    target = urlsplit(url)
    # Capitals first, as in Go; ALL_PROXY is ignored there, and here too.
    proxy = _first(environ, f"{target.scheme}_proxy")
    if not proxy or _is_direct(target, _first(environ, "no_proxy")):
        return ""
    return check_proxy(proxy if "://" in proxy else f"http://{proxy}")


def check_proxy(proxy: str) -> str:
    """Return the URL of a proxy if its scheme is supported.

    Raises:
        ConfigError: It is not supported; the message leaves out user and password of the URL.
    """
    parts = urlsplit(proxy)
    if parts.scheme not in (*_HTTP, *SOCKS) or not parts.hostname:
        raise ConfigError(
            f"The proxy {parts.scheme}://{parts.hostname or ''} is of a kind that is not supported.",
            "Use http://, https:// or socks5://.",
        )
    return proxy


def http_proxy(proxy: str) -> str | None:
    """Return the proxy that requests name; None without a proxy, and for SOCKS, which the connector handles."""
    return proxy if urlsplit(proxy).scheme in _HTTP else None


def _first(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _is_direct(target: SplitResult, no_proxy: str) -> bool:
    """Negation of ``httpproxy.config.useProxy``."""
    host = (target.hostname or "").rstrip(".").lower()
    port = target.port or _PORTS.get(target.scheme, 0)
    address = _address(host)
    # Loopback is never proxied, whatever NO_PROXY says.
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_is_match(rule, host, port, address) for rule in _rules(no_proxy))


def _rules(no_proxy: str) -> Iterator[str]:
    return (rule for part in no_proxy.split(",") if (rule := part.strip().lower()))


def _is_match(
    rule: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        # Names are not resolved for this, as in Go: only a server with a numeric address matches a network.
        network = _network(rule)
        return network is not None and address is not None and address in network
    name, wanted_port = _host_and_port(rule)
    if wanted_port and wanted_port != str(port):
        return False
    if (other := _address(name)) is not None:
        return other == address
    if not name or address is not None:
        return False
    # .example.org and *.example.org match only subdomains; example.org also matches itself.
    suffix = name.removeprefix("*")
    return host.endswith(suffix) if suffix.startswith(".") else host == suffix or host.endswith(f".{suffix}")


def _host_and_port(rule: str) -> tuple[str, str]:
    """Split ``host:port``, ``[address]:port``; an IPv6 address without brackets has colons but no port."""
    if rule.startswith("["):
        name, _, rest = rule[1:].partition("]")
        return name, rest.removeprefix(":")
    if rule.count(":") == 1:
        name, _, port = rule.partition(":")
        return name, port
    return rule, ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
