"""Services of an imported file, and the addresses by which its containers refer to them.

Each run has its own Services, named after the run, so addresses in variables, arguments and probes must be
rewritten. A name is rewritten where it can only be an address: before a port, after ``://``, before ``.svc``, or as
the whole value of a field that contains hosts. Elsewhere it may be any word, and a finding names the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from l2rtui.backends.kubernetes.manifests.import_fields import containers, items, mapping

_HOST_WORDS: Final = "host|addr|endpoint|server|master|url|uri|coordinator|peer|rendezvous|rdzv|redis|broker|dns"
_HOST_FIELD: Final = re.compile(_HOST_WORDS, re.IGNORECASE)
"""Name of a variable or option whose whole value is a host."""
_FILES: Final = r"\.(?:py|sh|bash|js|jar|so|json|ya?ml|toml|cfg|conf|ini|txt|log|md|pt|ckpt)\b"
_UNIQUE: Final = ("clusterIP", "clusterIPs", "externalIPs", "loadBalancerIP", "healthCheckNodePort", "selector")
"""Fields of a Service that must be unique in a cluster; two runs would collide on them."""
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")


def service_name(run: str, extra: Mapping[str, Any]) -> str:
    """Return the name of an imported Service in one run; a run named like its Service keeps that name.

    Programs of other files can then reach it at the known address, such as ``etcd:2379``.
    """
    name = str(extra["name"])
    if extra.get("keeps") and run == name:
        return name
    return f"{run}-{name}"[:63].rstrip("-")


def own_fields(spec: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a Service that a run keeps, and the fields that it drops."""
    own = {key: value for key, value in spec.items() if key not in _UNIQUE or value == "None"}
    gone = {key: value for key, value in spec.items() if key in _UNIQUE and key != "selector" and value != "None"}
    if gone.get("clusterIPs") == ["None"]:  # a headless Service stays headless
        own["clusterIPs"] = gone.pop("clusterIPs")
    ports = items(own, "ports")
    node_ports = {
        f"ports[{number}].nodePort": port["nodePort"] for number, port in enumerate(ports) if "nodePort" in port
    }
    if node_ports:
        own["ports"] = [{key: value for key, value in port.items() if key != "nodePort"} for port in ports]
    return own, {**gone, **node_ports}


class ServiceAddresses:
    """Finds the addresses of one Service in the texts of containers."""

    def __init__(self, name: str, namespace: str = "") -> None:
        word = re.escape(name)
        space = re.escape(namespace) if namespace else r"[a-z0-9-]+"
        pod = r"(?P<pod>(?:[\w$(){}-]+\.)?)"
        end = r"(?=$|[\s:/?#,;\"'&|)\]])"
        domain = rf"(?:\.{space})?\.svc(?:\.[a-z0-9-]+)*"
        # ``NAME.NAMESPACE`` without ``.svc`` may be any domain, unless it is the namespace of the file.
        inner = rf"(?:{domain}" + (rf"|\.{space}{end}" if namespace else "") + ")"
        start = r"(?<![\w./-])"
        option = rf"(?<![\w-])(?P<option>--?[\w-]*(?i:{_HOST_WORDS})[\w-]*[= ]\s*)"
        self._address = re.compile(
            rf"{start}{pod}{word}{inner}"
            rf"|{start}{pod.replace('pod', 'port')}{word}(?=:[\d$])"
            rf"|(?<=://){pod.replace('pod', 'url')}{word}{end}"
            rf"|(?<=@){pod.replace('pod', 'login')}{word}(?=[:/]|$)"
            rf"|{option}{pod.replace('pod', 'value')}{word}{end}"
        )
        self._whole = re.compile(rf"{pod}{word}{inner}?")
        self._word = re.compile(rf"(?<![\w/-]){word}(?![\w-])(?!{_FILES})")
        variable = re.escape(re.sub(r"[^A-Z0-9]", "_", name.upper()))
        self._variable = re.compile(rf"\b{variable}_(?:SERVICE_(?:HOST|PORT)|PORT(?:_\d+\w*)?)\b")

    def followed(self, text: str, new: str, *, is_host: bool) -> str:
        """Return a text with the Service's addresses rewritten to its new name.

        Args:
            is_host: The whole text may be a host.
        """
        if is_host and (match := self._whole.fullmatch(text)):
            return f"{match['pod']}{new}"
        return self._address.sub(lambda match: "".join(filter(None, match.groups())) + new, text)

    def is_left(self, text: str, *, is_host: bool) -> bool:
        """Return True if a text refers to the Service, or its variables, in a way that is not rewritten."""
        return bool(self._variable.search(text) or self._word.search(self.followed(text, "", is_host=is_host)))


def places(pod_spec: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield each text of a pod that may contain an address: path, list or mapping, key, whether it is a host."""
    if isinstance(pod_spec.get("subdomain"), str):
        yield "subdomain", pod_spec, "subdomain", True
    for container in containers(pod_spec):
        where = str(container.get("name"))
        for variable in items(container, "env"):
            if isinstance(variable.get("value"), str):
                name = str(variable.get("name"))
                yield f"{where}: env {name}", variable, "value", bool(_HOST_FIELD.search(name))
        for part in ("command", "args"):
            words = container.get(part)
            words = words if isinstance(words, list) else []
            for number, word in enumerate(words):
                before = words[number - 1] if number else ""
                is_host = isinstance(before, str) and before.startswith("-") and bool(_HOST_FIELD.search(before))
                if isinstance(word, str):
                    yield f"{where}: {part}", words, number, is_host
        for part in (*_PROBES, "lifecycle"):
            yield from _texts(container.get(part), f"{where}: {part}")


def _texts(value: Any, path: str) -> Iterator[tuple[str, Any, Any, bool]]:
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, inner in pairs:
        if isinstance(inner, str):
            yield path, value, key, key == "host"
        else:
            yield from _texts(inner, path)


def follow(pod_spec: dict[str, Any], run: str, extras: Sequence[Mapping[str, Any]]) -> None:
    """Rewrite Service names in a pod template to the names in one run."""
    for extra in extras:
        addresses = ServiceAddresses(str(extra["name"]), str(extra.get("namespace", "")))
        new = service_name(run, extra)
        for _, holder, key, is_host in places(pod_spec):
            holder[key] = addresses.followed(holder[key], new, is_host=is_host)


def named_places(pod_spec: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the places where a Service's addresses are rewritten, and those where its name is left unchanged."""
    addresses = ServiceAddresses(str(extra["name"]), str(extra.get("namespace", "")))
    followed: dict[str, None] = {}
    left: dict[str, None] = {}
    for where, holder, key, is_host in places(pod_spec):
        text = holder[key]
        if addresses.followed(text, "", is_host=is_host) != text:
            followed[where] = None
        if addresses.is_left(text, is_host=is_host):
            left[where] = None
    return list(followed), list(left)


_SHORT_ADDRESS: Final = re.compile(r"(?:^|://|=)([a-z][a-z0-9-]*):\d{2,5}\b")


def foreign_addresses(pod_spec: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Return short names with a port, such as ``etcd:2379``, that no Service of the file has, with their place."""
    own = {*names, "localhost"}
    foreign: dict[str, str] = {}
    for where, holder, key, _ in places(pod_spec):
        for name in _SHORT_ADDRESS.findall(holder[key]):
            if name not in own:
                foreign.setdefault(name, where)
    return foreign


def own_variables(pod_spec: Mapping[str, Any]) -> list[str]:
    """Return the places that read the controller's name or id from a label, which differs for each run."""
    labels = ("job-name", "controller-uid")
    return [
        f"{container.get('name')}: env {variable.get('name')}"
        for container in containers(pod_spec)
        for variable in items(container, "env")
        if any(
            label in str(mapping(mapping(variable, "valueFrom"), "fieldRef").get("fieldPath")) for label in labels
        )
    ]
