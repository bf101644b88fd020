"""Each example in manifests/ on each backend: it can be launched there, or a sentence gives the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from l2rtui.backends.base import Backend
from l2rtui.backends.docker.backend import DockerBackend
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.local.backend import LocalBackend
from l2rtui.config import Settings
from l2rtui.domain.preflight import refusals
from l2rtui.services import launcher
from l2rtui.services.spec import spec_file
from tests.cluster.conftest import IMAGE, ROOT, kubeconfig, kubectl, namespace

__all__ = ["kubeconfig", "namespace"]  # fixtures

NO_RUNS = {"cluster.yaml", "rbac.yaml"}
SPECS = sorted(path for path in (ROOT / "manifests").glob("*.yaml") if path.name not in NO_RUNS)
ONLY_KUBERNETES = ("l2r-sidecar", "worker-pods")
REFUSED = {
    "local": dict.fromkeys(ONLY_KUBERNETES, "Kubernetes"),
    "docker": dict.fromkeys(ONLY_KUBERNETES, "needs the kubernetes backend")
    | {"l2r-containers": "use the local backend"},
    "kubernetes": {"l2r-containers": "which no mount brings it"},
}
NAME = "walk-over"
CLAIMS = ("workshop", "l2r-persistent-claim")
"""Volumes of the examples; on a cluster they exist beforehand."""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteMany], storageClassName: "", resources: {{requests: {{storage: 1Gi}}}}}}
"""


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.process),
        pytest.param("docker", marks=pytest.mark.cluster),
        pytest.param("kubernetes", marks=pytest.mark.cluster),
    ]
)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """A backend with room for each example."""
    settings = Settings(slots_per_core=8, max_cpu_slots=8)
    if request.param == "kubernetes":
        place = request.getfixturevalue("namespace")
        kubectl("-n", place, "apply", "-f", "-", stdin="---".join(CLAIM.format(name=name) for name in CLAIMS))
        made: Backend = KubernetesBackend(replace(settings, namespaces=(place,)))
    elif request.param == "docker":
        made = DockerBackend(settings)
    else:
        made = LocalBackend(settings, state=tmp_path / "local")
    yield made
    await made.close()


@pytest.mark.timeout(400)  # each example is checked in a process of its own
async def test_each_example_has_a_plan_or_a_sentence(backend: Backend) -> None:
    told: dict[str, str] = {}
    for path in SPECS:
        wish = spec_file.load(str(path), (f"image={IMAGE}",), NAME)  # not the name of another user's run
        prepared = await launcher.prepare(backend, wish)
        assert not prepared.plan.conflicts, path.name
        assert all(pod.name.startswith(NAME) for run in prepared.plan.runs for pod in run.pods)
        if found := refusals(prepared.findings):
            told[path.stem] = " ".join(f"{one.sentence}. {one.hint}" for one in found)
    expected = REFUSED[backend.name]
    assert told.keys() == expected.keys(), told
    assert all(words in told[name] for name, words in expected.items()), told
