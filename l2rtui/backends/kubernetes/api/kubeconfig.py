"""Which server, as whom: kubeconfig files merged as kubectl merges them, or the pod's own service account.

The client library's reader is not used: importing it costs two seconds of CPU here, and of several files it lets
the last one choose the current context, where kubectl takes the first that names one.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from l2rtui.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own token, certificate authority and namespace."""
_SECTIONS = ("clusters", "users", "contexts")


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints a credential, as ``users[].user.exec`` describes it."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1beta1"
    provide_cluster_info: bool = False
    install_hint: str = ""


@dataclass(frozen=True, slots=True)
class Oidc:
    """Tokens of an identity provider, with what renews them; ``source`` is the file where they stand."""

    id_token: str = field(default="", repr=False)
    refresh_token: str = field(default="", repr=False)
    issuer: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    ca: bytes = b""
    source: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """How to say who we are; secrets never show in ``repr``.

    Attributes:
        certificate, key: PEM. certificate_file, key_file: where they stand instead, read anew for each connection.
        impersonate: Headers that ask to act as somebody else.
    """

    name: str = ""
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    certificate_file: str = ""
    key_file: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    exec: ExecPlugin | None = None
    oidc: Oidc | None = None
    impersonate: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a connection needs.

    Attributes:
        context: Name of the context; ``in-cluster`` for a pod's own account.
        server: Base URL without a slash at its end.
        ca: PEM of the authorities to trust; empty means the system's.
        is_insecure: The kubeconfig says not to verify the server.
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


def load_access(
    context: str = "", kubeconfig: str | None = None, environ: Mapping[str, str] | None = None
) -> Access:
    """Find out where and as whom.

    Args:
        context: Empty means the current one.
        kubeconfig: Path, or several joined as in ``KUBECONFIG``; None means ``KUBECONFIG``, then
            ``~/.kube/config``, then the service account of the pod that we run in.

    Raises:
        ConfigError: nothing found, or what was found cannot be used; names file and entry.
    """
    environ = os.environ if environ is None else environ
    merged = merge_files(kubeconfig, environ)
    if merged is None:
        inside = _in_cluster(environ)
        if inside is not None and context in ("", inside.context):
            return inside
        raise ConfigError("No kubeconfig was found.", "Set KUBECONFIG, or write ~/.kube/config.")
    return merged.access(context)


def context_names(
    kubeconfig: str | None = None, environ: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], str]:
    """Names of all contexts and of the current one; for completion and for choosing."""
    environ = os.environ if environ is None else environ
    merged = merge_files(kubeconfig, environ)
    if merged is None:
        inside = _in_cluster(environ)
        return ((inside.context,), inside.context) if inside else ((), "")
    return tuple(merged.entries["contexts"]), merged.current


@dataclass(slots=True)
class Merged:
    """Entries of all files by section and name, each with the folder that its relative paths start from."""

    entries: dict[str, dict[str, tuple[dict[str, Any], Path, str]]]
    current: str = ""

    def access(self, context: str = "") -> Access:
        """The access of one context.

        Raises:
            ConfigError: there is no such context, or it points to nothing.
        """
        name = context or self.current
        if not name:
            known = ", ".join(self.entries["contexts"]) or "none"
            raise ConfigError(
                f"The kubeconfig has no current context (there are: {known}).", "Name one: `--context NAME`."
            )
        chosen, _, source = self._entry("contexts", name, "kubeconfig")
        cluster_name, user_name = _str(chosen, "cluster", source), _str(chosen, "user", source)
        cluster, folder, source = self._entry("clusters", cluster_name, f"context {name}")
        server = _str(cluster, "server", source).rstrip("/")
        if not server:
            raise ConfigError(f"The cluster {cluster_name} in {source} has no server.")
        user = User()
        if user_name:
            entry, user_folder, user_source = self._entry("users", user_name, f"context {name}")
            user = _user(user_name, entry, user_folder, user_source)
        return Access(
            name,
            cluster_name,
            server if "://" in server else f"https://{server}",
            user,
            _str(chosen, "namespace", source) or "default",
            _pem(cluster, "certificate-authority", folder, source),
            cluster.get("insecure-skip-tls-verify") is True,
            _str(cluster, "tls-server-name", source),
            _str(cluster, "proxy-url", source),
        )

    def _entry(self, section: str, name: str, asked_by: str) -> tuple[dict[str, Any], Path, str]:
        found = self.entries[section].get(name)
        if found is None:
            known = ", ".join(self.entries[section]) or "none"
            raise ConfigError(
                f"The {asked_by} has no {section.removesuffix('s')} {name!r} (there are: {known}).",
                "Look at `kubectl config view`.",
            )
        return found


def merge_files(kubeconfig: str | None, environ: Mapping[str, str]) -> Merged | None:
    """Merge the files; None where there is none and none was asked for.

    As kubectl does: of two entries with one name the first counts, and so does the first current context. A file
    that is missing is passed over, unless it was named alone.
    """
    named = kubeconfig or environ.get("KUBECONFIG", "")
    home = environ.get("HOME") or str(Path("~").expanduser())
    paths = [Path(part).expanduser() for part in named.split(os.pathsep) if part] if named else []
    paths = paths or [Path(home) / ".kube" / "config"]
    merged, found = Merged({section: {} for section in _SECTIONS}), False
    for path in dict.fromkeys(paths):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"The kubeconfig {path} cannot be read: {error.strerror}.") from error
        found = True
        _merge(merged, _parse(path, text), path)
    if not found and named:
        raise ConfigError(f"There is no kubeconfig {named}.", "Correct KUBECONFIG.")
    return merged if found else None


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parsed = yaml.load(text, Loader=loader)  # noqa: S506  (both are safe loaders; the C one is fast)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        # The error's own text may quote the line, and the line may hold a token.
        raise ConfigError(f"The kubeconfig {path}{where} is not YAML.") from None
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise ConfigError(f"The kubeconfig {path} is not a mapping.")
    return parsed


def _merge(merged: Merged, parsed: dict[str, Any], path: Path) -> None:
    merged.current = merged.current or _str(parsed, "current-context", str(path))
    folder = path.absolute().parent
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
            merged.entries[section].setdefault(name, (body, folder, str(path)))


def _user(name: str, entry: dict[str, Any], folder: Path, source: str) -> User:
    impersonate: list[tuple[str, str]] = []
    if entry.get("as"):
        impersonate.append(("Impersonate-User", str(entry["as"])))
        impersonate += [("Impersonate-Group", str(group)) for group in entry.get("as-groups") or []]
        for key, values in (entry.get("as-user-extra") or {}).items():
            impersonate += [(f"Impersonate-Extra-{key}", str(value)) for value in values]
    certificate, certificate_file = _data_or_file(entry, "client-certificate", folder, source)
    key, key_file = _data_or_file(entry, "client-key", folder, source)
    return User(
        name,
        certificate,
        key,
        certificate_file,
        key_file,
        _str(entry, "token", source),
        _path(entry, "tokenFile", folder, source),
        _str(entry, "username", source),
        _str(entry, "password", source),
        _exec(entry.get("exec"), folder, source),
        _oidc(entry.get("auth-provider"), source),
        tuple(impersonate),
    )


def _exec(entry: Any, folder: Path, source: str) -> ExecPlugin | None:
    if not isinstance(entry, dict):
        return None
    command = _str(entry, "command", source)
    if not command:
        raise ConfigError(f"A user in {source} has an exec plugin without a command.")
    if "/" in command and not Path(command).is_absolute():  # as kubectl: relative to the file, not to where we are
        command = str(folder / command)
    env = entry.get("env") or []
    return ExecPlugin(
        command,
        tuple(str(one) for one in entry.get("args") or []),
        tuple((str(one.get("name", "")), str(one.get("value", ""))) for one in env if isinstance(one, dict)),
        _str(entry, "apiVersion", source) or "client.authentication.k8s.io/v1beta1",
        entry.get("provideClusterInfo") is True,
        _str(entry, "installHint", source),
    )


def _oidc(entry: Any, source: str) -> Oidc | None:
    if not isinstance(entry, dict):
        return None
    provider, config = entry.get("name"), entry.get("config") or {}
    if provider != "oidc":
        raise ConfigError(
            f"A user in {source} logs in by the auth-provider {provider!r}, which Kubernetes has removed.",
            "Let your cloud's tool write the kubeconfig again: it will use an exec plugin.",
        )
    if not isinstance(config, dict):
        raise ConfigError(f"The auth-provider of a user in {source} has no config.")
    ca = _decoded(_str(config, "idp-certificate-authority-data", source), source)
    if not ca and config.get("idp-certificate-authority"):
        ca = _read(Path(_str(config, "idp-certificate-authority", source)), source)
    return Oidc(
        _str(config, "id-token", source),
        _str(config, "refresh-token", source),
        _str(config, "idp-issuer-url", source),
        _str(config, "client-id", source),
        _str(config, "client-secret", source),
        ca,
        source,
    )


def _in_cluster(environ: Mapping[str, str], folder: Path | None = None) -> Access | None:
    folder = SERVICE_ACCOUNT if folder is None else folder
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").is_file():
        return None
    user = replace(User("service account"), token_file=str(folder / "token"))
    ca = folder / "ca.crt"
    namespace = folder / "namespace"
    return Access(
        "in-cluster",
        "in-cluster",
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        user,
        namespace.read_text().strip() if namespace.is_file() else "default",
        ca.read_bytes() if ca.is_file() else b"",
    )


def _str(entry: dict[str, Any], key: str, source: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise ConfigError(f"In the kubeconfig {source}, {key} is not a text.")
    return str(value)


def _path(entry: dict[str, Any], key: str, folder: Path, source: str) -> str:
    text = _str(entry, key, source)
    return str(folder / Path(text).expanduser()) if text else ""


def _data_or_file(entry: dict[str, Any], key: str, folder: Path, source: str) -> tuple[bytes, str]:
    data = _str(entry, f"{key}-data", source)
    return (_decoded(data, source), "") if data else (b"", _path(entry, key, folder, source))


def _pem(entry: dict[str, Any], key: str, folder: Path, source: str) -> bytes:
    data, path = _data_or_file(entry, key, folder, source)
    return data or (_read(Path(path), source) if path else b"")


def _decoded(text: str, source: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except binascii.Error:
        raise ConfigError(f"The kubeconfig {source} holds a certificate or key that is not base64.") from None


def _read(path: Path, source: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}, named in {source}, cannot be read: {error.strerror}.") from error
