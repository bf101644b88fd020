"""The supported part of eksctl's ClusterConfig; every other field is refused by its name.

A silently ignored field would be noticed weeks later, after causing costs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from l2rtui.errors import SpecError


class Fields:
    """Reader of a mapping that removes each field it returns; remaining fields are refused at the end.

    Attributes:
        where: Path of the mapping in the file, for errors. left: Fields that were not read yet.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"{where or 'the file'} is not a mapping of fields")  # noqa: TRY004  (a mistake in a file)
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
        """Return a non-negative integer."""
        value = self.left.pop(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{self.at(name)} is {value!r}: write a whole number")
        return value

    def switch(self, name: str) -> bool:
        """Return a boolean; False if it is missing."""
        value = self.left.pop(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{self.at(name)} is {value!r}: write true or false")  # noqa: TRY004
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list; empty if it is missing."""
        value = self.left.pop(name, None) or []
        if not isinstance(value, list):
            raise ValueError(f"{self.at(name)} is no list")  # noqa: TRY004
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        texts = self.items(name)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{self.at(name)} contains a value that is not text")
        return texts

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return a mapping of texts as pairs."""
        inner = Fields(self.left.pop(name, None) or {}, self.at(name))
        return tuple((key, inner.text(key)) for key in list(inner.left))

    def inner(self, name: str) -> Fields:
        """Return the reader of an inner mapping; empty if it is missing."""
        return Fields(self.left.pop(name, None) or {}, self.at(name))

    def done(self) -> None:
        """Refuse fields that were not read."""
        if self.left:
            raise ValueError(f"{self.at(next(iter(self.left)))} is not supported")


IDENTITY_AGENT: Final = "eks-pod-identity-agent"
"""EKS add-on that provides pods with the credentials of their roles."""
FILE_SYSTEM: Final = "l2rtui.io/file-system"
"""Annotation of a ClusterConfig with the id of an existing file system; eksctl ignores annotations."""
_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,99}")
_GROUP_NAME = re.compile(r"[a-zA-Z0-9][-_a-zA-Z0-9]{0,62}")
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "NoExecute": "NO_EXECUTE", "PreferNoSchedule": "PREFER_NO_SCHEDULE"}
_POLICY = "arn:aws:iam::aws:policy"
ADDON_POLICIES: Mapping[str, str] = {
    "cloudWatch": f"{_POLICY}/CloudWatchAgentServerPolicy",
    "ebs": f"{_POLICY}/service-role/AmazonEBSCSIDriverPolicy",
    "efs": f"{_POLICY}/service-role/AmazonEFSCSIDriverPolicy",
    "imageBuilder": f"{_POLICY}/AmazonEC2ContainerRegistryPowerUser",
}
"""Names of ``iam.withAddonPolicies`` with the corresponding AWS policies."""
_WELL_KNOWN_POLICIES = {
    "ebsCSIController": ADDON_POLICIES["ebs"],
    "efsCSIController": ADDON_POLICIES["efs"],
    "imageBuilder": ADDON_POLICIES["imageBuilder"],
}
"""Names of ``wellKnownPolicies`` that correspond to an AWS policy; eksctl generates the text of the others."""
_MAX_NODES = 450  # default quota of EKS for nodes of a managed node group


class NodeGroup(Struct, frozen=True):
    """Nodes with the same settings.

    Attributes:
        volume_gib: Disk size of a node. is_private: Without public addresses, behind a NAT gateway.
        taints: (key, value, effect) in EKS' terms. ssh_key: Name of an EC2 key pair; empty for none.
        policies: ARNs of further policies of the nodes' role.
        reservation: Id of the capacity reservation that provides its nodes; empty for none.
        is_block: The reservation is a capacity block, which is paid in advance.
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
    reservation: str = ""
    is_block: bool = False

    @property
    def ami_type(self) -> str:
        """Machine image of its nodes, as named by the EKS API."""
        return _ami_type(self.instance_types[0])

    @property
    def capacity_type(self) -> str:
        """Pricing model of its machines, as named by the EKS API."""
        if self.is_block:
            return "CAPACITY_BLOCK"
        return "SPOT" if self.is_spot else "ON_DEMAND"

    @property
    def summary(self) -> str:
        """Number and types of its machines, for display."""
        types = ", ".join(self.instance_types)
        origin = f" of the {'block' if self.is_block else 'reservation'} {self.reservation}"
        return f"{self.desired} x {types}{' on spot' if self.is_spot else ''}{origin if self.reservation else ''}"


def _ami_type(kind: str) -> str:
    has_gpu = re.match(r"(p[2-9]|g[3-9])[a-z]*[-.]", kind)  # NVIDIA's; p6-b200 has a hyphen after its number
    # Graviton: a1, and every family with a g after its number (m6g, c7gn, g5g).
    is_arm = re.match(r"(a1|[a-z]+[0-9]+g[a-z]*)\.", kind)
    return f"AL2023_{'ARM_64' if is_arm else 'x86_64'}_{'NVIDIA' if has_gpu else 'STANDARD'}"


class PodIdentity(Struct, frozen=True):
    """Role of the pods of one service account (EKS Pod Identity).

    Attributes:
        policies: ARNs of policies for a role that is created for it.
        role: ARN of an existing role; empty to create one.
    """

    namespace: str
    service_account: str
    policies: tuple[str, ...] = ()
    role: str = ""

    def __str__(self) -> str:
        """Namespace and name, for display."""
        return f"{self.namespace}/{self.service_account}"


class ClusterSpec(Struct, frozen=True):
    """One cluster.

    Attributes:
        version: Kubernetes version; empty for the current default of EKS.
        zones: Availability zones; empty to choose.
        identities: Roles of service accounts. has_identity_agent: The add-on that they need is installed.
        file_system: Id of an existing file system, which is kept when the cluster is deleted; empty to create one.
    """

    name: str
    region: str
    version: str = ""
    zones: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    identities: tuple[PodIdentity, ...] = ()
    has_identity_agent: bool = False
    file_system: str = ""

    @property
    def needs_nat(self) -> bool:
        """True if nodes without public addresses have to reach registries."""
        return any(group.is_private for group in self.groups)


def load_cluster(path: str) -> ClusterSpec:
    """Read a ClusterConfig.

    Raises:
        SpecError: The file is missing or invalid, or has unsupported fields; the message names the field.
    """
    import yaml  # here: it takes tens of milliseconds, and other commands do not need it

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
    top = Fields(data, "")
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
    file_system = _file_system(meta)
    meta.done()
    zones = _zones(top, region)
    groups = tuple(_group(data, number) for number, data in enumerate(top.items("managedNodeGroups")))
    names = [group.name for group in groups]
    if double := next((group for group in names if names.count(group) > 1), ""):
        raise ValueError(f"managedNodeGroups has two groups named {double}")
    # Self-managed groups of eksctl; managed ones differ in their fields, so they are not converted.
    if "nodeGroups" in top.left:
        raise ValueError("nodeGroups is not supported: write them as managedNodeGroups")
    identities = _identities(top)
    has_agent = _has_identity_agent(top) or bool(identities)
    top.done()
    return ClusterSpec(name, region, kubernetes, zones, tags, groups, identities, has_agent, file_system)


def _zones(top: Fields, region: str) -> tuple[str, ...]:
    zones = tuple(top.texts("availabilityZones"))
    if zones and (len(zones) < 2 or len(set(zones)) < len(zones)):
        raise ValueError("availabilityZones names fewer than two zones, which EKS needs, or one twice")
    if len(zones) > 4:  # eight blocks, two for each zone: see templates.network
        raise ValueError("availabilityZones names more than four zones: the network has room for four")
    if strange := next((zone for zone in zones if not zone.startswith(region)), ""):
        raise ValueError(f"availabilityZones names {strange}, which is not in {region}")
    return zones


def _file_system(meta: Fields) -> str:
    # An annotation, not a field of our own: eksctl can still read the same file.
    annotations = dict(meta.pairs("annotations"))
    where = "metadata.annotations"
    file_system = annotations.pop(FILE_SYSTEM, "")
    if file_system and not re.fullmatch(r"fs-[0-9a-f]{8,40}", file_system):
        raise ValueError(f"{where}.{FILE_SYSTEM} is {file_system!r}: write an id such as fs-0123456789abcdef0")
    if strange := next((key for key in annotations if key.startswith("l2rtui.io/")), ""):
        raise ValueError(f"{where}.{strange} is not supported")
    return file_system


def _identities(top: Fields) -> tuple[PodIdentity, ...]:
    iam = top.inner("iam")
    items = iam.items("podIdentityAssociations")
    iam.done()
    identities = tuple(
        _identity(data, f"iam.podIdentityAssociations[{number}]") for number, data in enumerate(items)
    )
    names = [str(identity) for identity in identities]
    if double := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"iam.podIdentityAssociations names the service account {double} twice")
    return identities


def _identity(data: Any, where: str) -> PodIdentity:
    fields = Fields(data, where)
    namespace, account = fields.text("namespace"), fields.text("serviceAccountName")
    for name in (namespace, account):
        if not _KUBERNETES_NAME.fullmatch(name):
            raise ValueError(f"{where} names {name!r}: write lower-case letters, digits and '-'")
    role, arns = fields.text("roleARN", ""), fields.texts("permissionPolicyARNs")
    policy_names = fields.inner("wellKnownPolicies")
    chosen = [arn for name, arn in _WELL_KNOWN_POLICIES.items() if policy_names.switch(name)]
    policy_names.done()
    fields.done()
    policies = tuple(dict.fromkeys([*arns, *chosen]))
    if bool(role) == bool(policies):
        raise ValueError(f"{where} needs either roleARN, or permissionPolicyARNs and wellKnownPolicies")
    if wrong := next((arn for arn in (role, *policies) if arn and not arn.startswith("arn:")), ""):
        raise ValueError(f"{where} names {wrong!r}, which is not an ARN")
    return PodIdentity(namespace, account, policies, role)


def _has_identity_agent(top: Fields) -> bool:
    names = []
    for number, data in enumerate(top.items("addons")):
        fields = Fields(data, f"addons[{number}]")
        names.append(fields.text("name"))
        fields.done()
    if strange := next((name for name in names if name != IDENTITY_AGENT), ""):
        raise ValueError(f"addons names {strange}, which is not supported: {IDENTITY_AGENT} is")
    return bool(names)


def _group(data: Any, number: int) -> NodeGroup:
    fields = Fields(data, f"managedNodeGroups[{number}]")
    name = fields.text("name")
    if not _GROUP_NAME.fullmatch(name):
        raise ValueError(f"{fields.at('name')} is {name!r}: write letters, digits, '-' and '_'")
    if (family := fields.text("amiFamily", "AmazonLinux2023")) != "AmazonLinux2023":
        raise ValueError(f"{fields.at('amiFamily')} {family} is not supported: AmazonLinux2023 is")
    types = _instance_types(fields)
    desired, minimum, maximum = _sizes(fields)
    taints = (_taint(taint, f"{fields.at('taints')}[{n}]") for n, taint in enumerate(fields.items("taints")))
    reservation, is_block = _reservation(fields)
    group = NodeGroup(
        name,
        types,
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
        reservation=reservation,
        is_block=is_block,
    )
    fields.done()
    _check_reserved(group, fields)
    return group


def _instance_types(fields: Fields) -> tuple[str, ...]:
    single, several = fields.text("instanceType", ""), tuple(fields.texts("instanceTypes"))
    if bool(single) == bool(several):
        raise ValueError(f"{fields.where} needs either instanceType or instanceTypes")
    types = (single,) if single else several
    # EKS uses one machine image per group: nodes of another kind would start without a driver, or never.
    if strange := next((kind for kind in types if _ami_type(kind) != _ami_type(types[0])), ""):
        raise ValueError(f"{fields.where} has {types[0]} and {strange}, which need different machine images")
    return types


def _sizes(fields: Fields) -> tuple[int, int, int]:
    """Return desired, minimum and maximum number of nodes."""
    # eksctl's defaults: two nodes, and missing numbers follow the given ones.
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
    return desired, minimum, maximum


def _reservation(fields: Fields) -> tuple[str, bool]:
    """Return the id of a group's reservation, and True if it is a capacity block."""
    market = fields.inner("instanceMarketOptions")
    kind = market.text("marketType", "")
    market.done()
    reservation = fields.inner("capacityReservation")
    target = reservation.inner("capacityReservationTarget")
    name = target.text("capacityReservationID", "")
    target.done()
    reservation.done()
    if kind not in ("", "capacity-block"):
        raise ValueError(f"{market.at('marketType')} {kind} is not supported: capacity-block is; see also `spot`")
    if name and not re.fullmatch(r"cr-[0-9a-f]{8,40}", name):
        raise ValueError(f"{target.at('capacityReservationID')} is {name!r}: write one such as cr-0123456789abcdef")
    if kind and not name:
        raise ValueError(f"{target.at('capacityReservationID')} is missing: a capacity block is bought first")
    return name, bool(kind)


def _check_reserved(group: NodeGroup, fields: Fields) -> None:
    """Refuse several types, spot, and ssh (which EKS does not allow with a launch template) in a reserved group."""
    if not group.reservation:
        return
    if len(group.instance_types) > 1:
        raise ValueError(f"{fields.at('instanceTypes')} names several types, and a reservation holds one")
    if group.is_spot:
        raise ValueError(f"{fields.at('spot')} cannot be true: the group's machines are reserved")
    if group.ssh_key:
        raise ValueError(f"{fields.at('ssh')} is not supported with a capacityReservation")


def _taint(data: Any, where: str) -> tuple[str, str, str]:
    taint = Fields(data, where)
    key, value, effect = taint.text("key"), taint.text("value", ""), taint.text("effect")
    if effect not in _EFFECTS:
        raise ValueError(f"{where}.effect is {effect!r}: write {' or '.join(_EFFECTS)}")
    taint.done()
    return key, value, _EFFECTS[effect]


def _ssh(fields: Fields) -> str:
    ssh = fields.inner("ssh")
    key, is_allowed = ssh.text("publicKeyName", ""), ssh.switch("allow")
    ssh.done()
    if is_allowed and not key:
        raise ValueError(f"{ssh.where}.publicKeyName is missing: the name of an EC2 key pair")
    return key if is_allowed else ""  # as in eksctl: a key does not open a port


def _policies(fields: Fields) -> tuple[str, ...]:
    iam = fields.inner("iam")
    arns = iam.texts("attachPolicyARNs")
    addons = iam.inner("withAddonPolicies")
    chosen = [arn for name, arn in ADDON_POLICIES.items() if addons.switch(name)]
    addons.done()
    iam.done()
    if wrong := next((arn for arn in arns if not arn.startswith("arn:")), ""):
        raise ValueError(f"{iam.where}.attachPolicyARNs names {wrong!r}, which is not an ARN")
    return tuple(dict.fromkeys([*arns, *chosen]))
