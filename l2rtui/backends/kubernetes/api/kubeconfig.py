"""Kubeconfig files merged as kubectl merges them, or the service account of the pod: server and user of a context.

The official client library's reader (``kubernetes.aio.config`` at 37.0.1) is not used, since it

- lets the last of several files choose the current context, where kubectl takes the first that names one;
- raises a TypeError for an empty first file, and for an ``https`` context without a user;
- ignores ``as`` and its groups, and so acts with more permissions than requested;
- resolves a plugin's relative path against the working folder, and reads ``tokenFile`` once;
- in a pod, sends a token with its trailing line break, which is an invalid header (``load_incluster_config``).

Each item has a test that fails with the library's reader (``test_upstream_faults.py``). When a release of the
library passes a test, our replacement for that item can be removed.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.login import Confidential
from l2rtui.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which a pod finds its token, certificate authority and namespace."""
_SECTIONS = ("clusters", "users", "contexts")
_AS_USER, _AS_UID, _AS_GROUP, _AS_EXTRA = (
    f"Impersonate-{part}" for part in ("User", "Uid", "Group", "Extra-")
)  # fmt: skip
_EXTRA_SAFE = "!#$&'*+^`|"
"""Characters of an HTTP field name besides letters, digits and ``-._~`` (RFC 9110, 5.6.2); others are encoded."""


class ExecPlugin(Struct, frozen=True):
    """Credential plugin, as ``users[].user.exec`` describes it."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1beta1"
    provide_cluster_info: bool = False
    install_hint: str = ""


class Oidc(Confidential, frozen=True):
    """Tokens of an OpenID Connect provider, and the settings to renew them.

    Attributes:
        source, user: The kubeconfig with the tokens, and its user entry.
    """

    id_token: str = ""
    refresh_token: str = ""
    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    ca: bytes = b""
    source: str = ""
    user: str = ""


class User(Confidential, frozen=True):
    """User entry of a kubeconfig.

    Attributes:
        certificate, key: PEM. certificate_file, key_file: Paths instead, read again when the login is renewed.
        impersonate: Headers of user impersonation (``as``, ``as-uid``, ``as-groups``, ``as-user-extra``).
    """

    name: str = ""
    certificate: bytes = b""
    key: bytes = b""
    certificate_file: str = ""
    key_file: str = ""
    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    exec: ExecPlugin | None = None
    oidc: Oidc | None = None
    impersonate: tuple[tuple[str, str], ...] = ()


class Access(Struct, frozen=True):
    """Server, TLS settings and user of one context.

    Attributes:
        context: Name of the context; ``in-cluster`` for a pod's own account.
        server: Base URL without a trailing slash.
        ca: PEM of the trusted authorities; empty for the system's.
        is_insecure: The server's certificate is not verified (``insecure-skip-tls-verify``).
    """

    context: str
    cluster: str
    server: str
    user: User
    namespace: str = "default"
    ca: bytes = b""
    is_insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""

    @property
    def acting_user(self) -> str:
        """Name of the user for messages: the kubeconfig's user, or the impersonated user."""
        user = dict(self.user.impersonate).get(_AS_USER, "")
        return f"{user} (impersonated by {self.user.name or 'anonymous'})" if user else self.user.name


def load_access(
    context: str = "", kubeconfig: str | None = None, environ: Mapping[str, str] | None = None
) -> Access:
    """Load a context from kubeconfig files, or from the pod's service account.

    Args:
        context: Empty for the current context.
        kubeconfig: Path, or several joined as in ``KUBECONFIG``; None for ``KUBECONFIG``, then ``~/.kube/config``,
            then the service account of the surrounding pod.

    Raises:
        ConfigError: The configuration is missing or invalid; the message names file and entry.
    """
    environ = os.environ if environ is None else environ
    merged = merge_files(kubeconfig, environ)
    if merged is None:
        inside = _in_cluster(environ)
        if inside is not None and context in ("", inside.context):
            return inside
        raise ConfigError("No kubeconfig was found.", "Set KUBECONFIG, or write ~/.kube/config.")
    return merged.access(context)


def impersonating(access: Access, user: str = "", groups: tuple[str, ...] = ()) -> Access:
    """Return the access with another user or other groups to impersonate; empty keeps the kubeconfig's.

    As kubectl's ``--as`` and ``--as-group``: each replaces only its own part.

    Raises:
        ConfigError: Groups are given without a user to impersonate.
    """
    replaced = {name for name, value in ((_AS_USER, user), (_AS_GROUP, groups)) if value}
    rest = [pair for pair in access.user.impersonate if pair[0] not in replaced]
    pairs = [*([(_AS_USER, user)] if user else []), *((_AS_GROUP, group) for group in groups), *rest]
    if pairs and _AS_USER not in dict(pairs):
        raise ConfigError("There are groups to act in, and no user to act as.", "Add `--as USER`.")
    return replace(access, user=replace(access.user, impersonate=_checked_headers(pairs)))


def context_names(
    kubeconfig: str | None = None, environ: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], str]:
    """Return the names of all contexts, and of the current one; for completion and selection."""
    environ = os.environ if environ is None else environ
    merged = merge_files(kubeconfig, environ)
    if merged is None:
        inside = _in_cluster(environ)
        return ((inside.context,), inside.context) if inside else ((), "")
    return tuple(merged.entries["contexts"]), merged.current


class _Entry(Confidential, frozen=True):
    """Mapping in a kubeconfig, with its file; relative paths in it start from ``folder``."""

    body: dict[str, Any]
    folder: Path
    source: str

    def text(self, key: str) -> str:
        """Return a value as text; empty if it is missing."""
        value = self.body.get(key)
        if value is None:
            return ""
        # Numbers too: YAML reads an unquoted token or namespace of digits as a number.
        if not isinstance(value, str | int | float):
            raise ConfigError(f"In the kubeconfig {self.source}, {key} is not a text.")
        return str(value)

    def path(self, key: str) -> str:
        """Return an absolute path; empty if it is missing."""
        text = self.text(key)
        return str(self.folder / Path(text).expanduser()) if text else ""

    def data_or_file(self, key: str) -> tuple[bytes, str]:
        """Return the content of ``key-data``, or otherwise the path in ``key``."""
        data = self.text(f"{key}-data")
        if not data:
            return b"", self.path(key)
        try:
            return base64.b64decode(data, validate=False), ""
        except ValueError:  # includes binascii.Error and text that is not ASCII
            raise ConfigError(
                f"The kubeconfig {self.source} holds a certificate or key that is not base64."
            ) from None

    def pem(self, key: str) -> bytes:
        """Return the content of ``key-data``, or otherwise of the file in ``key``."""
        data, path = self.data_or_file(key)
        if data or not path:
            return data
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}, named in {self.source}, cannot be read: {error.strerror}.") from error


@dataclass(slots=True)
class MergedKubeconfig:
    """Entries of all kubeconfig files by section and name."""

    entries: dict[str, dict[str, _Entry]]
    current: str = ""

    def access(self, context: str = "") -> Access:
        """Resolve one context; empty for the current one. Raises ConfigError if it is missing or has dangling
        references.
        """
        name = context or self.current
        if not name:
            names = ", ".join(self.entries["contexts"]) or "none"
            raise ConfigError(
                f"The kubeconfig has no current context (there are: {names}).", "Name one: `--context NAME`."
            )
        chosen = self._entry("contexts", name, "kubeconfig")
        cluster_name, user_name = chosen.text("cluster"), chosen.text("user")
        cluster = self._entry("clusters", cluster_name, f"context {name}")
        server = cluster.text("server").rstrip("/")
        if not server:
            raise ConfigError(f"The cluster {cluster_name} in {cluster.source} has no server.")
        # A context without a user is valid: clusters behind an authenticating proxy need none.
        user = _user(user_name, self._entry("users", user_name, f"context {name}")) if user_name else User()
        return Access(
            name,
            cluster_name,
            server if "://" in server else f"https://{server}",
            user,
            chosen.text("namespace") or "default",
            cluster.pem("certificate-authority"),
            cluster.body.get("insecure-skip-tls-verify") is True,
            cluster.text("tls-server-name"),
            cluster.text("proxy-url"),
        )

    def _entry(self, section: str, name: str, referrer: str) -> _Entry:
        entry = self.entries[section].get(name)
        if entry is None:
            names = ", ".join(self.entries[section]) or "none"
            raise ConfigError(
                f"The {referrer} has no {section.removesuffix('s')} {name!r} (there are: {names}).",
                "Look at `kubectl config view`.",
            )
        return entry


def merge_files(kubeconfig: str | None, environ: Mapping[str, str]) -> MergedKubeconfig | None:
    """Merge kubeconfig files; None if the default file is missing and none was named.

    As in kubectl: of two entries with the same name the first counts, and so does the first current context.
    Missing files are skipped, unless all named files are missing.
    """
    named = kubeconfig or environ.get("KUBECONFIG", "")
    home_folder = environ.get("HOME") or str(Path("~").expanduser())
    paths = [Path(part).expanduser() for part in named.split(os.pathsep) if part] if named else []
    paths = paths or [Path(home_folder) / ".kube" / "config"]
    merged, is_found = MergedKubeconfig({section: {} for section in _SECTIONS}), False
    for path in dict.fromkeys(paths):  # KUBECONFIG often names a file twice after sourcing a profile twice
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"The kubeconfig {path} cannot be read: {error.strerror}.") from error
        is_found = True
        _merge(merged, _parse(path, text), path)
    if not is_found and named:
        raise ConfigError(f"There is no kubeconfig {named}.", "Correct KUBECONFIG, or add `--backend local`.")
    return merged if is_found else None


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    import yaml  # 25 ms, which shell completion without a kubeconfig can save

    from l2rtui import bounded_yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is fast
    try:
        parsed = bounded_yaml.load(text, loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        # The parser's message may quote the line, and the line may contain a token.
        raise ConfigError(f"The kubeconfig {path}{where} is not YAML.") from None
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise ConfigError(f"The kubeconfig {path} is not a mapping.")
    return parsed


def _merge(merged: MergedKubeconfig, parsed: dict[str, Any], path: Path) -> None:
    folder = path.absolute().parent
    merged.current = merged.current or _Entry(parsed, folder, str(path)).text("current-context")
    for section in _SECTIONS:
        items = parsed.get(section) or []
        if not isinstance(items, list):
            raise ConfigError(f"In the kubeconfig {path}, {section} is not a list.")
        for item in items:
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str):
                raise ConfigError(f"In the kubeconfig {path}, one of the {section} has no name.")
            body = item.get(section.removesuffix("s")) or {}
            if not isinstance(body, dict):
                raise ConfigError(f"In the kubeconfig {path}, {section} {name!r} is not a mapping.")
            # setdefault: the first file takes precedence, as in kubectl.
            merged.entries[section].setdefault(name, _Entry(body, folder, str(path)))


def _user(name: str, entry: _Entry) -> User:
    certificate, certificate_file = entry.data_or_file("client-certificate")
    key, key_file = entry.data_or_file("client-key")
    return User(
        name,
        certificate,
        key,
        certificate_file,
        key_file,
        entry.text("token"),
        entry.path("tokenFile"),
        entry.text("username"),
        entry.text("password"),
        _exec(entry),
        _oidc(name, entry),
        _impersonation(entry),
    )


def _impersonation(user: _Entry) -> tuple[tuple[str, str], ...]:
    """Return the headers with which an entry impersonates another user; the library's reader drops them."""
    name = user.text("as")
    if not name:
        return ()  # groups without a user are ignored, as in client-go
    groups, extra = user.body.get("as-groups") or [], user.body.get("as-user-extra") or {}
    if not isinstance(groups, list) or not isinstance(extra, dict):
        raise ConfigError(
            f"In the kubeconfig {user.source}, as-groups is not a list or as-user-extra is not a mapping."
        )
    pairs = [(_AS_USER, name), *((_AS_GROUP, str(group)) for group in groups)]
    pairs += [(_AS_UID, uid)] if (uid := user.text("as-uid")) else []
    for key, values in extra.items():
        # client-go encodes them like this, and the server decodes them: a key may be a URL.
        header = f"{_AS_EXTRA}{quote(str(key).lower(), safe=_EXTRA_SAFE)}"
        pairs += [(header, str(value)) for value in (values if isinstance(values, list) else [values])]
    return _checked_headers(pairs)


def _checked_headers(pairs: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    for name, value in pairs:
        if not value.isprintable():  # a line break would begin another header
            raise ConfigError(f"The value of {name} holds characters that no name has.", "Correct `as` or `--as`.")
    return tuple(pairs)


def _plain(value: Any) -> str:
    """Return an argument or a value of a variable; null becomes an empty text, as in kubectl."""
    return "" if value is None else str(value)


def _exec(user: _Entry) -> ExecPlugin | None:
    body = user.body.get("exec")
    if not isinstance(body, dict):
        return None
    entry = replace(user, body=body)
    command = entry.text("command")
    if not command:
        raise ConfigError(f"A user in {user.source} has an exec plugin without a command.")
    # As in kubectl: a path is relative to the kubeconfig, a bare name is looked up in PATH.
    if "/" in command and not Path(command).is_absolute():
        command = str(user.folder / command)
    env = body.get("env") or []
    return ExecPlugin(
        command,
        tuple(map(_plain, body.get("args") or [])),
        tuple((str(item.get("name") or ""), _plain(item.get("value"))) for item in env if isinstance(item, dict)),
        entry.text("apiVersion") or "client.authentication.k8s.io/v1beta1",
        body.get("provideClusterInfo") is True,
        entry.text("installHint"),
    )


def _oidc(name: str, user: _Entry) -> Oidc | None:
    body = user.body.get("auth-provider")
    if not isinstance(body, dict):
        return None
    # gcp, azure and others were removed from client-go in 1.26; only oidc is left.
    provider, config = body.get("name"), body.get("config") or {}
    if provider != "oidc":
        raise ConfigError(
            f"A user in {user.source} logs in by the auth-provider {provider!r}, which Kubernetes has removed.",
            "Let your cloud's tool write the kubeconfig again: it will use an exec plugin.",
        )
    if not isinstance(config, dict):
        raise ConfigError(f"The auth-provider of a user in {user.source} has no config.")
    # client-go does not resolve the provider's paths against the kubeconfig: they start from the working folder.
    entry = _Entry(config, Path(), user.source)
    return Oidc(
        entry.text("id-token"),
        entry.text("refresh-token"),
        entry.text("idp-issuer-url"),
        entry.text("client-id"),
        entry.text("client-secret"),
        entry.pem("idp-certificate-authority"),
        user.source,
        name,
    )


def _in_cluster(environ: Mapping[str, str], folder: Path | None = None) -> Access | None:
    folder = SERVICE_ACCOUNT if folder is None else folder
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").is_file():
        return None
    # The path, not the token: the kubelet replaces a projected token before it expires (1 h by default).
    user = replace(User("service account"), token_file=str(folder / "token"))
    ca = folder / "ca.crt"
    namespace = folder / "namespace"
    # An IPv6 address needs brackets in a URL (RFC 3986, 3.2.2).
    return Access(
        "in-cluster",
        "in-cluster",
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        user,
        namespace.read_text().strip() if namespace.is_file() else "default",
        ca.read_bytes() if ca.is_file() else b"",
    )
