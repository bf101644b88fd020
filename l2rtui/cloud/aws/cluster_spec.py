"""eksctl's ClusterConfig, as far as it is carried out here; every other field is refused by its name.

A field that is silently left out of a cluster is found out weeks later and costs money in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
"""What ``iam.withAddonPolicies`` may name, and the policy of Amazon's that it stands for."""
_MOST_NODES = 450


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
        """Whether its machines have NVIDIA's GPUs."""
        return bool(re.match(r"(p[2-9]|g[3-9])[a-z]*\.", self.instance_types[0]))

    @property
    def ami_type(self) -> str:
        """The image of its machines, in EKS' own word."""
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
        """Whether nodes without public addresses have to reach registries."""
        return any(group.is_private for group in self.groups)

    def with_zones(self, zones: tuple[str, ...]) -> ClusterSpec:
        """The same cluster in these zones."""
        return replace(self, zones=zones)


def load_cluster(path: str) -> ClusterSpec:
    """Read a ClusterConfig.

    Raises:
        SpecError: the file is missing or wrong, or asks for what is not carried out here; names the field.
    """
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise SpecError(f"There is no file {path}.", "An example is manifests/cluster.yaml.") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
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
    wanted = meta.text("version", "")
    if wanted and not re.fullmatch(r"1\.[0-9]{2}", wanted):
        raise ValueError(f"metadata.version is {wanted!r}: write one such as '1.33', in quotes")
    tags = meta.pairs("tags")
    meta.done()
    zones = tuple(top.texts("availabilityZones"))
    if zones and (len(zones) < 2 or len(set(zones)) < len(zones)):
        raise ValueError("availabilityZones names fewer than two zones, which EKS needs, or one twice")
    if len(zones) > 4:
        raise ValueError("availabilityZones names more than four zones: the network has room for four")
    if strange := next((zone for zone in zones if not zone.startswith(region)), ""):
        raise ValueError(f"availabilityZones names {strange}, which is not in {region}")
    groups = tuple(_group(one, number) for number, one in enumerate(top.items("managedNodeGroups")))
    names = [group.name for group in groups]
    if double := next((one for one in names if names.count(one) > 1), ""):
        raise ValueError(f"managedNodeGroups has two groups named {double}")
    if "nodeGroups" in top.left:
        raise ValueError("nodeGroups is not supported: write them as managedNodeGroups")
    top.done()
    return ClusterSpec(name, region, wanted, zones, tags, groups)


def _group(data: Any, number: int) -> NodeGroup:
    one = _Fields(data, f"managedNodeGroups[{number}]")
    name = one.text("name")
    if not _GROUP_NAME.fullmatch(name):
        raise ValueError(f"{one.at('name')} is {name!r}: write letters, digits, '-' and '_'")
    single, several = one.text("instanceType", ""), tuple(one.texts("instanceTypes"))
    if bool(single) == bool(several):
        raise ValueError(f"{one.where} needs either instanceType or instanceTypes")
    if (family := one.text("amiFamily", "AmazonLinux2023")) != "AmazonLinux2023":
        raise ValueError(f"{one.at('amiFamily')} {family} is not supported: AmazonLinux2023 is")
    desired = one.count("desiredCapacity", None)
    minimum = one.count("minSize", desired if desired is not None else 2)
    desired = desired if desired is not None else minimum
    maximum = one.count("maxSize", max(desired or 0, minimum or 0, 1))
    assert desired is not None and minimum is not None and maximum is not None  # noqa: S101, PT018  (defaults)
    if not 0 <= minimum <= desired <= maximum <= _MOST_NODES or maximum < 1:
        raise ValueError(
            f"{one.where}: minSize {minimum}, desiredCapacity {desired} and maxSize {maximum} are not in order, "
            f"or beyond {_MOST_NODES}"
        )
    group = NodeGroup(
        name,
        (single,) if single else several,
        desired,
        minimum,
        maximum,
        volume_gib=one.count("volumeSize", 80) or 80,
        is_private=one.switch("privateNetworking"),
        is_spot=one.switch("spot"),
        labels=one.pairs("labels"),
        taints=tuple(_taint(taint, f"{one.at('taints')}[{n}]") for n, taint in enumerate(one.items("taints"))),
        ssh_key=_ssh(one),
        policies=_policies(one),
        tags=one.pairs("tags"),
    )
    one.done()
    return group


def _taint(data: Any, where: str) -> tuple[str, str, str]:
    taint = _Fields(data, where)
    key, value, effect = taint.text("key"), taint.text("value", ""), taint.text("effect")
    if effect not in _EFFECTS:
        raise ValueError(f"{where}.effect is {effect!r}: write {' or '.join(_EFFECTS)}")
    taint.done()
    return key, value, _EFFECTS[effect]


def _ssh(one: _Fields) -> str:
    ssh = one.inner("ssh")
    key, is_allowed = ssh.text("publicKeyName", ""), ssh.switch("allow")
    ssh.done()
    if is_allowed and not key:
        raise ValueError(f"{ssh.where}.publicKeyName is missing: the name of an EC2 key pair")
    return key if is_allowed else ""


def _policies(one: _Fields) -> tuple[str, ...]:
    iam = one.inner("iam")
    arns = iam.texts("attachPolicyARNs")
    addons = iam.inner("withAddonPolicies")
    chosen = [arn for name, arn in ADDON_POLICIES.items() if addons.switch(name)]
    addons.done()
    iam.done()
    if wrong := next((arn for arn in arns if not arn.startswith("arn:")), ""):
        raise ValueError(f"{iam.where}.attachPolicyARNs names {wrong!r}, which is no ARN")
    return tuple(dict.fromkeys([*arns, *chosen]))


class _Fields:
    """A mapping whose fields are taken one after the other; what is left at the end is refused.

    Attributes:
        left: Fields that nobody has taken.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"{where or 'the file'} is no mapping of fields")  # noqa: TRY004  (a mistake in a file)
        self.where = where
        self.left: dict[str, Any] = {str(key): value for key, value in data.items()}

    def at(self, name: str) -> str:
        """The field's full name."""
        return f"{self.where}.{name}".lstrip(".")

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without a default it has to be there."""
        value = self.left.pop(name, default)
        if value is None:
            raise ValueError(f"{self.at(name)} is missing")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"{self.at(name)} is no text")  # noqa: TRY004
        return str(value)

    def count(self, name: str, default: int | None) -> int | None:
        """A whole number from 0 up."""
        value = self.left.pop(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{self.at(name)} is {value!r}: write a whole number")
        return value

    def switch(self, name: str) -> bool:
        """True or false; false when it is not there."""
        value = self.left.pop(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{self.at(name)} is {value!r}: write true or false")  # noqa: TRY004
        return value

    def items(self, name: str) -> list[Any]:
        """A list; empty when it is not there."""
        value = self.left.pop(name, None) or []
        if not isinstance(value, list):
            raise ValueError(f"{self.at(name)} is no list")  # noqa: TRY004
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        found = self.items(name)
        if not all(isinstance(one, str) for one in found):
            raise ValueError(f"{self.at(name)} holds something that is no text")
        return found

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """A mapping of texts."""
        inner = _Fields(self.left.pop(name, None) or {}, self.at(name))
        return tuple((key, inner.text(key)) for key in list(inner.left))

    def inner(self, name: str) -> _Fields:
        """A mapping with fields of its own; empty when it is not there."""
        return _Fields(self.left.pop(name, None) or {}, self.at(name))

    def done(self) -> None:
        """Refuse what nobody has taken."""
        if self.left:
            raise ValueError(f"{self.at(next(iter(self.left)))} is not supported")
