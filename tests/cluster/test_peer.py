"""Comparison with the official client: its lists match the snapshot, object by object."""

from __future__ import annotations

import kubernetes
import pytest

from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.quantity import parse_quantity
from tests.cluster.conftest import IMAGE, eventually, kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: pinned}}
spec:
  nodeName: phortx3
  containers:
    - name: main
      image: {IMAGE}
      command: [sleep, "600"]
      env: [{{name: NVIDIA_VISIBLE_DEVICES, value: "2"}}, {{name: CUDA_VISIBLE_DEVICES, value: "2"}}]
"""


@pytest.fixture
def official(kubeconfig):
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        yield kubernetes.client.CoreV1Api(client)


async def test_nodes_and_pods_are_those_that_the_official_client_lists(official, namespace):
    kubectl("-n", namespace, "apply", "-f", "-", stdin=POD)
    eventually(
        "the pod to run", lambda: official.read_namespaced_pod("pinned", namespace).status.phase == "Running"
    )
    backend = KubernetesBackend(Settings(namespaces=(namespace,)))
    snapshot = await backend.snapshot()
    await backend.close()

    for node in official.list_node().items:
        ours = snapshot.nodes[node.metadata.name]
        assert ours.cpu_cores == parse_quantity(node.status.allocatable["cpu"])
        assert ours.memory_bytes == parse_quantity(node.status.allocatable["memory"])
        assert len(ours.gpus) == int(node.status.allocatable["nvidia.com/gpu"])
        assert dict(ours.labels) == node.metadata.labels
    listed = {pod.metadata.uid: pod for pod in official.list_namespaced_pod(namespace).items}
    (uid,) = listed
    pod = snapshot.pods[uid]
    assert (pod.name, pod.namespace, pod.node, pod.phase, pod.created) == (
        "pinned",
        namespace,
        "phortx3",
        "Running",
        listed[uid].metadata.creation_timestamp.timestamp(),
    )
    assert [slot.id.gpu for slot in snapshot.ledger.slots.values() if slot.pod_uid == uid] == [2]
