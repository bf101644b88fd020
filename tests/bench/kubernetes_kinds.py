"""Elastic training on a cluster, the long way: 2, 4, 1, 3 nodes, one pod deleted by force at each size.

    python -m tests.bench.kubernetes_kinds [c10d|etcd-v2]

It needs $KUBECONFIG with the real node of the test cluster, and the node image ($L2R_TEST_IMAGE).
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from pathlib import Path

from tests.cluster.conftest import NODE_IMAGE, Cli, eventually, kubectl
from tests.cluster.kinds import NODE, claim, hurt, left, pods

RUN = "digits"
SPEC = f"""\
kind: elastic
name: {RUN}
image: {NODE_IMAGE}
nodes:
  replicas: 2
  max: 4
  command: [l2r-runtime, classify, train, --data, digits, --epochs, "{{epochs}}", --step-seconds, "0.1"]
  resources: {{{{cpu: 0.1}}}}
rendezvous: {{{{backend: {{backend}}}}}}
pod:
  shm: 64Mi
  node_selector: {{{{kubernetes.io/hostname: {NODE}}}}}
  mounts: [{{{{path: /l2r, claim: digits}}}}]
placement: {{{{on: {NODE}/4-5}}}}
"""


def main(backend: str) -> None:
    """Run it, and print what was seen."""
    with tempfile.TemporaryDirectory(prefix="l2r-kinds-", dir="/var/tmp") as text:
        home = Path(text)
        home.chmod(0o777)
        (home / "volume").mkdir()
        namespace = f"b-{uuid.uuid4().hex[:8]}"
        kubectl("create", "namespace", namespace)
        try:
            with claim(namespace, "digits", home / "volume"):
                _run(Cli(home, namespace, os.environ["KUBECONFIG"]), namespace, home, backend)
        finally:
            kubectl("delete", "namespace", namespace, "--wait=false")


def _run(cli: Cli, namespace: str, home: Path, backend: str) -> None:
    spec = home / "spec.yaml"
    spec.write_text(SPEC.format(backend=backend, epochs=os.environ.get("L2R_EPOCHS", "120")))
    eventually("its service account", lambda: kubectl("-n", namespace, "get", "sa", "default", check=False))
    print(f"elastic over {backend}, load {os.getloadavg()[0]:.1f}", flush=True)
    cli.run("launch", "-f", str(spec), "--yes")
    seen = hurt(cli, RUN, home / "volume", (2, 4, 1, 3), lambda line: print(line, flush=True))
    assert max(look.step for _, look in seen) == seen[-1][1].step, "no restart from the beginning"
    eventually("its end", lambda: "Completed" in cli.run("runs"), 900)
    found = pods(namespace, RUN)
    restarts = {
        name: sum(one["restartCount"] for one in pod["status"]["containerStatuses"]) for name, pod in found.items()
    }
    print(f"Completed; restarts {restarts}; load {os.getloadavg()[0]:.1f}")
    print(cli.run("metrics", RUN))
    print(cli.run("destroy", RUN, "--yes").strip())
    print(f"left: {left(namespace) or 0}; snapshots: {len(list((home / 'volume' / 'checkpoints').glob('*.json')))}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "c10d")
