"""attach to a process that reads its input, and reserved slots, on a real API server and kubelet."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.conftest import IMAGE, Cli, eventually, kubectl, kubectl_json

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPEC = """\
kind: job
name: typed
image: {image}
pod:
  node_selector: {{kubernetes.io/hostname: phortx0}}
  template: {{spec: {{containers: [{{name: main, stdin: true, tty: {tty}}}]}}}}
job:
  restart: Never
  command: [sh, -c, "while read -r line; do echo got $line; [ $line = end ] && exit 0; done; exit 3"]
"""
NODE = "phortx3"


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
def test_a_process_that_reads_gets_what_is_typed_and_is_left_running(cli: Cli, tmp_path: Path, tty: bool) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(image=IMAGE, tty=str(tty).lower()))
    cli.run("launch", "-f", str(spec), "--yes")

    def phase() -> tuple[str, str]:
        (pod,) = kubectl_json("-n", cli.namespace, "get", "pods")["items"] or ({"metadata": {"name": ""}},)
        return pod["metadata"]["name"], pod.get("status", {}).get("phase", "")

    name, _ = eventually("it runs", lambda: phase()[1] == "Running" and phase())
    with terminal(cli, "attach", name) as (process, master, screen):
        if tty:  # earlier input is dropped with the change to raw keys
            eventually("raw keys", lambda: not termios.tcgetattr(master)[3] & termios.ICANON)
        os.write(master, b"hello\r")
        eventually("the answer", lambda: b"got hello" in screen)
        os.write(master, b"\x10\x11")
        assert process.wait(60) == 0
    assert phase()[1] == "Running", "left, not ended"
    with terminal(cli, "attach", name) as (process, master, screen):
        if tty:
            eventually("raw keys", lambda: not termios.tcgetattr(master)[3] & termios.ICANON)
        os.write(master, b"end\r")
        eventually("the answer", lambda: b"got end" in screen)
        process.wait(60)
    eventually("it ends", lambda: phase()[1] == "Succeeded")


@contextmanager
def terminal(cli: Cli, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int, bytearray]]:
    """Run a verb on a terminal; yield it, our end of the terminal, and its output so far."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        cli.argv(*words), env=cli.env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    screen = bytearray()

    def read() -> None:
        try:
            while block := os.read(master, 65_536):
                screen.extend(block)
        except OSError:
            pass  # the other side is closed

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process, master, screen
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(30)
        os.close(master)


def test_a_slot_that_is_set_aside_is_refused_to_others_until_it_is_given_back(cli: Cli, namespace: str) -> None:
    slot = f"{NODE}/7"
    cli.run("reserve", slot, "--for", "30m", "--note", "figures")
    (kept,) = [
        item
        for item in kubectl_json("-n", namespace, "get", "configmaps")["items"]
        if item["metadata"]["name"] == f"l2r-reserved-{NODE}"
    ]
    assert "figures" in str(kept["data"])
    other = {"LOGNAME": "somebody-else"}
    refused = cli.call("reserve", slot, "--for", "30m", **other)
    assert refused.returncode != 0
    assert slot in refused.stderr
    assert cli.call("unreserve", slot, "--yes", **other).returncode != 0
    states = {row["id"]: row["state"] for row in cli.json("slots", **other) if row["id"].startswith(slot)}
    assert set(states.values()) == {"reserved"}
    cli.run("unreserve", slot, "--yes")
    assert "figures" not in kubectl("-n", namespace, "get", "configmaps", "-o", "yaml")
    cli.run("reserve", slot, "--for", "30m", **other)
    cli.run("unreserve", "--mine", "--yes", **other)
