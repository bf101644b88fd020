"""ClusterConfig files, costs of a cluster, and kubeconfigs: the parts read and written on this side."""

from __future__ import annotations

import pytest
import yaml
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.credentials import EksSource, plugin_source
from l2rtui.backends.kubernetes.api.kubeconfig import load_access
from l2rtui.cloud.aws import eks_login, prices
from l2rtui.cloud.aws.cluster_spec import load_cluster
from l2rtui.errors import BackendError, SpecError

FILE = """\
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: lab, region: us-west-2, version: "1.33", tags: {team: racing}}
availabilityZones: [us-west-2a, us-west-2b]
managedNodeGroups:
  - name: gpu
    instanceType: g4dn.2xlarge
    desiredCapacity: 2
    minSize: 0
    maxSize: 4
    volumeSize: 200
    privateNetworking: true
    labels: {nodetype: phortx}
    taints: [{key: nvidia.com/gpu, value: "true", effect: NoSchedule}]
    ssh: {allow: true, publicKeyName: lab}
    iam:
      withAddonPolicies: {efs: true, ebs: false}
      attachPolicyARNs: ["arn:aws:iam::aws:policy/AmazonS3FullAccess"]
  - {name: cpu, instanceTypes: [m5.large, m5.xlarge], spot: true}
"""
BLOCK = """
  - name: block
    instanceType: p5.48xlarge
    privateNetworking: true
    instanceMarketOptions: {marketType: capacity-block}
    capacityReservation: {capacityReservationTarget: {capacityReservationID: cr-0123456789abcdef0}}
"""
IDENTITIES = """\
addons: [{name: eks-pod-identity-agent}]
iam:
  podIdentityAssociations:
    - {namespace: kube-system, serviceAccountName: efs-csi-controller, wellKnownPolicies: {efsCSIController: true}}
    - {namespace: ml, serviceAccountName: trainer, roleARN: "arn:aws:iam::123456789012:role/trainer"}
"""
FILES = "metadata: {annotations: {l2rtui.io/file-system: fs-0123456789abcdef0, note: x}, "
ALL = f"{FILE.replace('metadata: {', FILES)}{BLOCK}{IDENTITIES}"


def read(tmp_path, text):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return load_cluster(str(path))


def test_what_eksctl_understands_is_understood(tmp_path):
    spec = read(tmp_path, FILE)
    assert (spec.name, spec.region, spec.version, spec.needs_nat) == ("lab", "us-west-2", "1.33", True)
    gpu, cpu = spec.groups
    assert (gpu.desired, gpu.minimum, gpu.maximum, gpu.volume_gib, gpu.is_private) == (2, 0, 4, 200, True)
    assert gpu.taints == (("nvidia.com/gpu", "true", "NO_SCHEDULE"),)
    assert gpu.policies == (
        "arn:aws:iam::aws:policy/AmazonS3FullAccess",
        "arn:aws:iam::aws:policy/service-role/AmazonEFSCSIDriverPolicy",
    )
    assert (gpu.ssh_key, gpu.ami_type) == ("lab", "AL2023_x86_64_NVIDIA")
    assert (cpu.desired, cpu.minimum, cpu.maximum, cpu.is_spot) == (2, 2, 2, True)
    assert (cpu.ami_type, replace(cpu, instance_types=("m7g.large",)).ami_type) == (
        "AL2023_x86_64_STANDARD",
        "AL2023_ARM_64_STANDARD",
    )
    assert replace(cpu, instance_types=("g5g.xlarge",)).ami_type == "AL2023_ARM_64_NVIDIA"


def test_reservations_identities_and_a_file_system_that_exists(tmp_path):
    spec = read(tmp_path, ALL)
    block = spec.groups[2]
    assert (block.reservation, block.is_block, block.capacity_type) == (
        "cr-0123456789abcdef0",
        True,
        "CAPACITY_BLOCK",
    )
    assert [group.capacity_type for group in spec.groups[:2]] == ["ON_DEMAND", "SPOT"]
    assert spec.file_system == "fs-0123456789abcdef0"
    assert (spec.has_identity_agent, [str(item) for item in spec.identities]) == (
        True, ["kube-system/efs-csi-controller", "ml/trainer"],
    )  # fmt: skip
    assert spec.identities[0].policies == ("arn:aws:iam::aws:policy/service-role/AmazonEFSCSIDriverPolicy",)
    assert (spec.identities[1].role, spec.identities[1].policies) == ("arn:aws:iam::123456789012:role/trainer", ())
    assert not read(tmp_path, FILE).has_identity_agent


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("marketType: capacity-block", "marketType: spot", "marketType spot is not supported: capacity-block is"),
        ("cr-0123456789abcdef0", "r-1", "capacityReservationID is 'r-1': write one such as cr-"),
        ("{capacityReservationID: cr-0123456789abcdef0}", "{}", "capacityReservationID is missing"),
        ("capacityReservationID: cr-", "capacityReservationResourceGroupARN: cr-", "GroupARN is not supported"),
        ("instanceType: p5.48xlarge", "instanceTypes: [p5.48xlarge, p5en.48xlarge]", "a reservation holds one"),
        ("    instanceMarketOptions", "    spot: true\n    instanceMarketOptions", "spot cannot be true"),
        ("    instanceMarketOptions", "    ssh: {allow: true, publicKeyName: k}\n    instanceMarketOptions",
         "ssh is not supported with a capacityReservation"),
        ("[m5.large, m5.xlarge]", "[m5.large, m7g.large]", "m5.large and m7g.large, which need different"),
        ("[m5.large, m5.xlarge]", "[g6.xlarge, m5.large]", "g6.xlarge and m5.large, which need different"),
        ("name: eks-pod-identity-agent", "name: vpc-cni", "addons names vpc-cni, which is not supported"),
        ("name: eks-pod-identity-agent", "name: eks-pod-identity-agent, version: v1", r"\[0\].version is not"),
        ("serviceAccountName: trainer", "serviceAccountName: Trainer", "names 'Trainer': write lower-case"),
        (', roleARN: "arn:aws:iam::123456789012:role/trainer"', "", "needs either roleARN, or"),
        ('"arn:aws:iam::123456789012:role/trainer"', "trainer", "names 'trainer', which is not an ARN"),
        ("efsCSIController", "certManager", "wellKnownPolicies.certManager is not supported"),
        ("ml, serviceAccountName: trainer", "kube-system, serviceAccountName: efs-csi-controller",
         "kube-system/efs-csi-controller twice"),
        ("fs-0123456789abcdef0", "vol-1", "file-system is 'vol-1': write an id such as fs-"),
        ("l2rtui.io/file-system", "l2rtui.io/filesystem", "l2rtui.io/filesystem is not supported"),
    ],
)  # fmt: skip
def test_what_goes_together_with_nothing_is_refused(tmp_path, old, new, sentence):
    assert old in ALL
    with pytest.raises(SpecError, match=sentence):
        read(tmp_path, ALL.replace(old, new, 1))


def test_the_example_is_one(tmp_path):
    assert [group.name for group in load_cluster("manifests/cluster.yaml").groups] == ["learners", "workers"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("metadata: {", "iam: {withOIDC: true}\nmetadata: {", "iam.withOIDC is not supported"),
        ("volumeSize: 200", "volumeIOPS: 3000", r"managedNodeGroups\[0\].volumeIOPS is not supported"),
        ("ebs: false", "albIngress: true", "withAddonPolicies.albIngress is not supported"),
        ("managedNodeGroups:", "nodeGroups:", "nodeGroups is not supported: write them as managedNodeGroups"),
        ("name: lab, region", "name: -x, region", "metadata.name is '-x'"),
        ("region: us-west-2,", "region: here,", "metadata.region is 'here'"),
        ('version: "1.33"', "version: 1.3", "metadata.version is '1.3'"),
        ("maxSize: 4", "maxSize: 1", "not in order"),
        ("maxSize: 4", "maxSize: many", "write a whole number"),
        ("effect: NoSchedule", "effect: Never", "taints\\[0\\].effect is 'Never'"),
        ("[us-west-2a, us-west-2b]", "[us-west-2a]", "fewer than two zones"),
        ("[us-west-2a, us-west-2b]", "[us-west-2a, eu-west-1a]", "eu-west-1a, which is not in us-west-2"),
        ("publicKeyName: lab", "publicKeyPath: x", "publicKeyPath is not supported"),
        ("name: cpu,", "name: gpu,", "two groups named gpu"),
        ("kind: ClusterConfig", "kind: Pod", "a ClusterConfig of eksctl.io is wanted"),
        ("privateNetworking: true", "privateNetworking: maybe", "write true or false"),
        ("labels: {nodetype: phortx}", "labels: [a]", "is not a mapping"),
        ("name: gpu\n    instanceType: g4dn.2xlarge", "name: gpu", "needs either instanceType"),
        ("kind: ClusterConfig", "kind: [", "not YAML"),
    ],
)
def test_what_is_not_carried_out_is_refused_by_its_name(tmp_path, old, new, sentence):
    assert old in FILE
    with pytest.raises(SpecError, match=sentence):
        read(tmp_path, FILE.replace(old, new, 1))


def test_a_file_that_is_not_there_names_the_example(tmp_path):
    with pytest.raises(SpecError, match=r"manifests/cluster\.yaml"):
        load_cluster(str(tmp_path / "none.yaml"))


def test_an_hour_costs_what_its_parts_cost(tmp_path):
    spec = read(tmp_path, FILE)
    estimate = prices.estimate(replace(spec, groups=spec.groups[:1]))
    disks = 2 * 200 * 0.08 / 730
    assert estimate.dollars_an_hour == pytest.approx(0.10 + 0.05 + 2 * 0.752 + disks)
    assert "list prices of us-east-1, noted 20" in estimate.sentence
    assert estimate.unknown == ()
    nothing = prices.estimate(spec, {"gpu": 0, "cpu": 0})
    assert nothing.dollars_an_hour == pytest.approx(0.15)


def test_an_unknown_price_is_said_to_be_unknown(tmp_path):
    spec = read(tmp_path, FILE.replace("g4dn.2xlarge", "p6.96xlarge").replace("us-west-2", "eu-west-1"))
    sentence = prices.estimate(spec).sentence
    assert "and what is unknown: 2 x p6.96xlarge of gpu" in sentence
    assert "eu-west-1 may cost more" in sentence


EKS = {"name": "lab", "endpoint": "https://abc.eks.example/", "certificateAuthority": {"data": "QUJD"}}


def test_a_kubeconfig_gets_an_entry_whose_tokens_are_signed_here(tmp_path):
    path = tmp_path / "kube" / "config"
    path.parent.mkdir()
    other = {"name": "mine", "context": {"cluster": "mine", "user": "me"}}
    path.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "contexts": [other], "current-context": "mine"})
    )
    for _ in range(2):
        assert eks_login.write_entry(path, EKS, "us-west-2") == "lab"
    document = yaml.safe_load(path.read_text())
    assert [entry["name"] for entry in document["contexts"]] == ["mine", "lab"]
    assert document["current-context"] == "lab"
    assert path.stat().st_mode & 0o777 == 0o600
    access = load_access("lab", str(path))
    assert access.server == "https://abc.eks.example"
    requests = []
    source = plugin_source(access, access.user.exec, lambda *request: requests.append(request) or ("t", 0.0))
    assert isinstance(source, EksSource)
    assert source._cluster == ("lab", "us-west-2", "", "")

    assert eks_login.remove_entry(path, "lab", "https://other.example") is False
    assert eks_login.remove_entry(path, "lab", EKS["endpoint"]) is True
    assert eks_login.remove_entry(path, "lab") is False
    assert [entry["name"] for entry in yaml.safe_load(path.read_text())["contexts"]] == ["mine"]
    assert eks_login.remove_entry(path, "mine") is False, "it was not written by us"


def test_a_cluster_without_an_address_gets_no_entry(tmp_path):
    with pytest.raises(BackendError, match="has no address yet"):
        eks_login.write_entry(tmp_path / "config", {"name": "lab"}, "us-west-2")
    assert not (tmp_path / "config").exists()
