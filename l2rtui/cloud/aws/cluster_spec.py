"""eksctl's ClusterConfig, as far as it is supported here; every other field is refused by its name.

A field that is silently ignored is noticed weeks later and costs money in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2rtui.errors import SpecError

_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,99}")
_GROUP_NAME = re.compile(r"[a-zA-Z0-9][-_a-zA-Z0-9]{0,62}")
_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "NoExecute": "NO_EXECUTE", "PreferNoSchedule": "PREFER_NO_SCHEDULE"}
_POLICY = "arn:aws:iam::aws:policy"
ADDON_POLICIES: Mapping[str, str] = {
    "cloudWatch": f"{_POLICY}/CloudWatchAgentServerPolicy",
    "ebs": f"{_POLICY}/service-role/AmazonEBSCSIDriverPolicy",
    "efs": f"{_POLICY}/service-role/AmazonEFSCSIDriverPolicy",
    "imageBuilder": f"{_POLICY}/AmazonEC2ContainerRegistryPowerUser",
}
"""Names of ``iam.withAddonPolicies``, and the AWS policy that each stands for."""
_MAX_NODES = 450  # default quota of EKS for nodes of a managed node group


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one kind.

    Attributes:
        volume_gib: Disk of a node. is_private: without public addresses, behind a NAT gateway.
        taints: (key, value, effect) in EKS' own words. ssh_key: name of an EC2 key pair, empty for none.
        policies: ARNs of further policies of the nodes' role.
    """

    name: str
    instance_types: tuple[str, ...]
    desired: int
    minimum: int
    maximum: int
    volume_gib: int = 80
    is_private: bool = False
    is_spot: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()
    ssh_key: str = ""
    policies: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def has_gpu(self) -> bool:
        """True when its machines have NVIDIA GPUs (families p and g)."""
        return bool(re.match(r"(p[2-9]|g[3-9])[a-z]*\.", self.instance_types[0]))

    @property
    def ami_type(self) -> str:
        """Machine image of its nodes, as the EKS API names it."""
        # Graviton: a1, and every family with a g after its number (m6g, c7gn, g5g).
        is_arm = bool(re.match(r"(a1|[a-z]+[0-9]+g[a-z]*)\.", self.instance_types[0]))
        chip = "ARM_64" if is_arm else "x86_64"
        return f"AL2023_{chip}_{'NVIDIA' if self.has_gpu else 'STANDARD'}"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One cluster.

    Attributes:
        version: Kubernetes' version; empty for the newest that EKS offers as its default.
        zones: Availability zones; empty to choose.
    """

    name: str
    region: str
    version: str = ""
    zones: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    groups: tuple[NodeGroup, ...] = ()

    @property
    def needs_nat(self) -> bool:
        """True when nodes without public addresses have to reach registries."""
        return any(group.is_private for group in self.groups)


def load_cluster(path: str) -> ClusterSpec:
    """Read a ClusterConfig.

    Raises:
        SpecError: the file is missing or wrong, or asks for what is not carried out here; names the field.
    """
    import yaml  # here: it takes tens of milliseconds, and other commands need none

    from l2rtui import bounded_yaml

    try:
        data = bounded_yaml.load(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise SpecError(f"There is no file {path}.", "An example is manifests/cluster.yaml.") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not YAML: {str(error).splitlines()[0]}.") from None
    try:
        return _cluster(data)
    except ValueError as error:
        raise SpecError(f"{path}: {error}.") from None


def _cluster(data: Any) -> ClusterSpec:
    top = _Fields(data, "")
    kind, version = top.text("kind", "ClusterConfig"), top.text("apiVersion", "eksctl.io/v1alpha5")
    if kind != "ClusterConfig" or not version.startswith("eksctl.io/"):
        raise ValueError(f"it is a {kind} of {version}, and a ClusterConfig of eksctl.io is wanted")
    meta = top.inner("metadata")
    name, region = meta.text("name"), meta.text("region")
    if not _NAME.fullmatch(name):
        raise ValueError(f"metadata.name is {name!r}: write letters, digits and '-', first a letter")
    if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]", region):
        raise ValueError(f"metadata.region is {region!r}: write one such as us-west-2")
    kubernetes = meta.text("version", "")
    if kubernetes and not re.fullmatch(r"1\.[0-9]{2}", kubernetes):
        raise ValueError(f"metadata.version is {kubernetes!r}: write one such as '1.33', in quotes")
    tags = meta.pairs("tags")
    meta.done()
    zones = tuple(top.texts("availabilityZones"))
    if zones and (len(zones) < 2 or len(set(zones)) < len(zones)):
        raise ValueError("availabilityZones names fewer than two zones, which EKS needs, or one twice")
    if len(zones) > 4:  # eight blocks, two for each zone: see templates.network
        raise ValueError("availabilityZones names more than four zones: the network has room for four")
    if strange := next((zone for zone in zones if not zone.startswith(region)), ""):
        raise ValueError(f"availabilityZones names {strange}, which is not in {region}")
    groups = tuple(_group(data, number) for number, data in enumerate(top.items("managedNodeGroups")))
    names = [group.name for group in groups]
    if double := next((group for group in names if names.count(group) > 1), ""):
        raise ValueError(f"managedNodeGroups has two groups named {double}")
    # Self-managed groups of eksctl; managed ones differ in their fields, so they are not converted.
    if "nodeGroups" in top.left:
        raise ValueError("nodeGroups is not supported: write them as managedNodeGroups")
    top.done()
    return ClusterSpec(name, region, kubernetes, zones, tags, groups)


def _group(data: Any, number: int) -> NodeGroup:
    fields = _Fields(data, f"managedNodeGroups[{number}]")
    name = fields.text("name")
    if not _GROUP_NAME.fullmatch(name):
        raise ValueError(f"{fields.at('name')} is {name!r}: write letters, digits, '-' and '_'")
    single, several = fields.text("instanceType", ""), tuple(fields.texts("instanceTypes"))
    if bool(single) == bool(several):
        raise ValueError(f"{fields.where} needs either instanceType or instanceTypes")
    if (family := fields.text("amiFamily", "AmazonLinux2023")) != "AmazonLinux2023":
        raise ValueError(f"{fields.at('amiFamily')} {family} is not supported: AmazonLinux2023 is")
    # eksctl's defaults: two nodes, and the three numbers follow each other where only some are given.
    desired = fields.count("desiredCapacity", None)
    minimum = fields.count("minSize", desired if desired is not None else 2)
    desired = desired if desired is not None else minimum
    maximum = fields.count("maxSize", max(desired or 0, minimum or 0, 1))
    if desired is None or minimum is None or maximum is None:
        raise ValueError(f"{fields.where}: minSize, desiredCapacity and maxSize are numbers, or left out")
    if not 0 <= minimum <= desired <= maximum <= _MAX_NODES or maximum < 1:
        raise ValueError(
            f"{fields.where}: minSize {minimum}, desiredCapacity {desired} and maxSize {maximum} are not in order, "
            f"or beyond {_MAX_NODES}"
        )
    taints = (_taint(taint, f"{fields.at('taints')}[{n}]") for n, taint in enumerate(fields.items("taints")))
    group = NodeGroup(
        name,
        (single,) if single else several,
        desired,
        minimum,
        maximum,
        volume_gib=fields.count("volumeSize", 80) or 80,
        is_private=fields.switch("privateNetworking"),
        is_spot=fields.switch("spot"),
        labels=fields.pairs("labels"),
        taints=tuple(taints),
        ssh_key=_ssh(fields),
        policies=_policies(fields),
        tags=fields.pairs("tags"),
    )
    fields.done()
    return group


def _taint(data: Any, where: str) -> tuple[str, str, str]:
    taint = _Fields(data, where)
    key, value, effect = taint.text("key"), taint.text("value", ""), taint.text("effect")
    if effect not in _EFFECTS:
        raise ValueError(f"{where}.effect is {effect!r}: write {' or '.join(_EFFECTS)}")
    taint.done()
    return key, value, _EFFECTS[effect]


def _ssh(fields: _Fields) -> str:
    ssh = fields.inner("ssh")
    key, is_allowed = ssh.text("publicKeyName", ""), ssh.switch("allow")
    ssh.done()
    if is_allowed and not key:
        raise ValueError(f"{ssh.where}.publicKeyName is missing: the name of an EC2 key pair")
    return key if is_allowed else ""  # as in eksctl: a key alone opens no port


def _policies(fields: _Fields) -> tuple[str, ...]:
    iam = fields.inner("iam")
    arns = iam.texts("attachPolicyARNs")
    addons = iam.inner("withAddonPolicies")
    chosen = [arn for name, arn in ADDON_POLICIES.items() if addons.switch(name)]
    addons.done()
    iam.done()
    if wrong := next((arn for arn in arns if not arn.startswith("arn:")), ""):
        raise ValueError(f"{iam.where}.attachPolicyARNs names {wrong!r}, which is no ARN")
    return tuple(dict.fromkeys([*arns, *chosen]))


class _Fields:
    """Reader of a mapping that removes each field it returns; fields left at the end are refused.

    Attributes:
        where: Path of the mapping in the file, for errors. left: Fields that were not read yet.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"{where or 'the file'} is no mapping of fields")  # noqa: TRY004  (a mistake in a file)
        self.where = where
        self.left: dict[str, Any] = {str(key): value for key, value in data.items()}

    def at(self, name: str) -> str:
        """Return the field's full name."""
        return f"{self.where}.{name}".lstrip(".")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; without a default it is required."""
        value = self.left.pop(name, default)
        if value is None:
            raise ValueError(f"{self.at(name)} is missing")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"{self.at(name)} is no text")  # noqa: TRY004
        return str(value)

    def count(self, name: str, default: int | None) -> int | None:
        """Return an integer from 0 up."""
        value = self.left.pop(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{self.at(name)} is {value!r}: write a whole number")
        return value

    def switch(self, name: str) -> bool:
        """Return a boolean; False when it is missing."""
        value = self.left.pop(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{self.at(name)} is {value!r}: write true or false")  # noqa: TRY004
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list; an empty one when it is missing."""
        value = self.left.pop(name, None) or []
        if not isinstance(value, list):
            raise ValueError(f"{self.at(name)} is no list")  # noqa: TRY004
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        texts = self.items(name)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{self.at(name)} holds something that is no text")
        return texts

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return a mapping of texts as pairs."""
        inner = _Fields(self.left.pop(name, None) or {}, self.at(name))
        return tuple((key, inner.text(key)) for key in list(inner.left))

    def inner(self, name: str) -> _Fields:
        """Return the reader of an inner mapping; an empty one when it is missing."""
        return _Fields(self.left.pop(name, None) or {}, self.at(name))

    def done(self) -> None:
        """Refuse fields that were not read."""
        if self.left:
            raise ValueError(f"{self.at(next(iter(self.left)))} is not supported")
