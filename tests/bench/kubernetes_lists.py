"""CPU seconds of `pods`, `runs` and `kubectl get pods` from a cold process, at 50 and 10,000 pods.

    python -m tests.bench.kubernetes_lists --rounds 5

It needs a cluster behind $KUBECONFIG with a stand-in node of at least 25 free slots, on which it launches one run
of 25 pods. A server of its own passes requests on to the cluster, and answers lists with as many copies of the run,
its node and its pods as are asked for. Both programs get the same objects over TLS. CPU is user and system time.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

NAMESPACE, RUN, REPLICAS = "lists", "lists-run", 25
SPEC = f"""
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: {RUN}}}
spec:
  replicas: {REPLICAS}
  selector: {{matchLabels: {{tier: lists}}}}
  template:
    metadata: {{labels: {{tier: lists}}}}
    spec:
      containers:
        - name: worker
          image: registry.example/worker:1
          command: [sleep, "3600"]
          env: [{{name: NVIDIA_VISIBLE_DEVICES, value: "0"}}, {{name: CUDA_VISIBLE_DEVICES, value: "0"}}]
"""
COPIED = ("pods", "configmaps", "replicasets", "nodes")
PAGE = 500


class Cluster:
    """The cluster of $KUBECONFIG, and copies of what is in it."""

    def __init__(self, folder: Path, node: str) -> None:
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        for name, part in (("ca", cluster), ("crt", user), ("key", user)):
            field = {"ca": "certificate-authority", "crt": "client-certificate", "key": "client-key"}[name]
            data = (
                base64.b64decode(part[f"{field}-data"])
                if f"{field}-data" in part
                else Path(part[field]).read_bytes()
            )
            (folder / name).write_bytes(data)
        self._tls = ssl.create_default_context(cafile=str(folder / "ca"))
        self._tls.load_cert_chain(folder / "crt", folder / "key")
        self._host = urlsplit(cluster["server"]).netloc
        self._node = node
        self._lists: dict[tuple[str, str, int], tuple[dict[str, object], str, list[object]]] = {}
        self.copies = 1

    def ask(self, method: str, path: str, accept: str, body: bytes | None = None) -> tuple[int, str, bytes]:
        """Pass a request on."""
        connection = http.client.HTTPSConnection(self._host, context=self._tls, timeout=60)
        headers = {"Accept": accept, "Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        result = answer.status, answer.getheader("Content-Type", ""), answer.read()
        connection.close()
        return result

    def page(self, path: str, accept: str) -> bytes | None:
        """Return a page of a list with its copies; None for a path that is not copied."""
        split = urlsplit(path)
        query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        if split.path.rsplit("/", 1)[-1] not in COPIED or "watch" in query:
            return None
        query.pop("limit", ""), query.pop("continue", "")
        key = (split.path, accept if "Table" in accept else "", self.copies)
        if key not in self._lists:
            _, _, text = self.ask("GET", split.path, accept)
            document = json.loads(text)
            field = "rows" if document["kind"] == "Table" else "items"
            self._lists[key] = document, field, list(self._copied(document.pop(field)))
        document, field, items = self._lists[key]
        arguments = parse_qs(split.query)
        size = int(arguments.get("limit", [str(len(items))])[0]) or len(items)
        first = int(arguments.get("continue", ["0"])[0])
        meta = {**document["metadata"], "continue": str(first + size) if first + size < len(items) else ""}
        return json.dumps({**document, "metadata": meta, field: items[first : first + size]}).encode()

    def _copied(self, items: list[object]) -> Iterator[object]:
        for item in items:
            text = json.dumps(item)
            if RUN not in text and f'"{self._node}"' not in text:
                yield item
                continue
            meta = item.get("object", item)["metadata"]
            for number in range(self.copies):
                copy = text.replace(RUN, f"{RUN}{number}").replace(self._node, f"{self._node}-{number}")
                copy = copy.replace(meta["uid"], f"{meta['uid']}-{number}")
                if run_id := (meta.get("labels") or {}).get("l2rtui.io/run-id"):
                    copy = copy.replace(run_id, f"{run_id[:-4]}{number:04x}")
                yield json.loads(copy)


@contextmanager
def serving(cluster: Cluster, folder: Path) -> Iterator[str]:
    """Serve copies over TLS; the path of a kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            accept = self.headers.get("Accept", "application/json")
            page = cluster.page(self.path, accept)
            self._send(200, "application/json", page) if page is not None else self._pass()

        def do_POST(self) -> None:
            self._pass()

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._send(*cluster.ask(self.command, self.path, self.headers.get("Accept", "*/*"), body))

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    key, certificate = folder / "server.key", folder / "server.crt"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    words += ["-days", "1", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(words, check=True, capture_output=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["clusters"][0]["cluster"] = {
        "server": f"https://127.0.0.1:{server.server_port}",
        "certificate-authority": str(certificate),
    }
    path = folder / "copies.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield str(path)
    server.shutdown()


def cpu(words: list[str], env: dict[str, str]) -> tuple[float, int]:
    """CPU seconds of one command, and the number of lines that it prints."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.PIPE)
        errors = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, errors.decode()
        out.seek(0)
        return usage.ru_utime + usage.ru_stime, sum(1 for _ in out)


def main(arguments: list[str]) -> int:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--node", default="phortx1")
    parser.add_argument("--pods", type=int, nargs="+", default=[50, 10_000])
    options = parser.parse_args(arguments)
    program = [sys.executable, "-m", "l2rtui"]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        places = {"XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home, "L2RTUI_BACKEND": "kubernetes"}
        env = {**os.environ, **places, "L2RTUI_NAMESPACES": NAMESPACE}
        spec = folder / "spec.yaml"
        spec.write_text(SPEC)
        subprocess.run(["kubectl", "create", "namespace", NAMESPACE], check=False, capture_output=True)
        launch = [*program, "launch", "-f", str(spec), "--on", f"{options.node}/0-6", "--yes", "--wait"]
        subprocess.run(launch, env=env, check=True)
        try:
            cluster = Cluster(folder, options.node)
            with serving(cluster, folder) as kubeconfig:
                commands = {
                    "kubectl get pods": ["kubectl", "-n", NAMESPACE, "get", "pods"],
                    "l2rtui pods": [*program, "pods"],
                    "l2rtui runs": [*program, "runs"],
                }
                for pods in options.pods:
                    cluster.copies = pods // REPLICAS
                    taken: dict[str, list[float]] = {name: [] for name in commands}
                    # In turns, so that the load of the machine meets all of them.
                    for number in range(options.rounds + 1):
                        for name, words in commands.items():
                            seconds, lines = cpu(words, {**env, "KUBECONFIG": kubeconfig})
                            if number:  # the first fills caches of discovery and of byte code
                                taken[name].append(seconds)
                            else:
                                print(f"{pods} pods, {name}: {lines} lines", flush=True)
                    base = statistics.median(taken["kubectl get pods"])
                    for name, values in taken.items():
                        middle = statistics.median(values)
                        print(
                            f"{pods:6} pods  {name:18} {middle:6.2f} s CPU  {middle / base:5.2f} x kubectl",
                            flush=True,
                        )
        finally:
            subprocess.run([*program, "destroy", RUN, "--yes"], env=env, check=False)
            subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, "--wait=false"], check=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
