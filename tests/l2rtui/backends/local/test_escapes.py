"""Programs that take a process out of a run: each process is ended by `destroy`, or named in its receipt.

Ten further ways, without a program of their own, are in ``test_destroy``.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from l2rtui.domain.status import Phase
from l2rtui.domain.workload import RestartPolicy
from tests.l2rtui.backends.local.test_destroy import assert_nothing_left, linux, sleepers

pytestmark = linux


def program(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def succeeds(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> Iterator[str]:
    """Seconds that no other process sleeps; the sleepers are ended after the test."""
    made = f"{5000 + os.getpid() % 4000}.{len(request.node.name)}"
    yield made
    for pid in sleepers(made):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def escape(lab, command: str, mark: str) -> None:
    await lab.launch(lab.set(command=("bash", "-c", f"{command}; exec sleep 600")))
    await lab.until(lambda _: sleepers(mark))


@pytest.mark.parametrize(
    "words",
    ["nohup", "setsid", "env -i", "env -i nohup setsid", "sudo -n", "sudo -n setsid", "su -s /bin/sh nobody -c"],
)
async def test_what_another_program_starts_is_ended(lab, mark, words):
    name, *_ = words.split()
    program(name)
    if name == "sudo" and not succeeds("sudo", "-n", "true"):
        pytest.skip("sudo asks for a password")
    if name == "su" and os.getuid() != 0:
        pytest.skip("su asks for a password")
    sleep = f"'setsid sleep {mark}'" if name == "su" else f"sleep {mark}"
    await escape(lab, f"({words} {sleep} </dev/null >/dev/null 2>&1 &)", mark)
    assert_nothing_left(lab, await lab.destroy(grace_seconds=0.2))
    assert sleepers(mark) == []


@pytest.mark.parametrize("words", ["", "setsid"])
async def test_what_a_script_leaves_in_the_background_is_named_when_it_ends(lab, mark, words):
    script = f"{words} sleep {mark} & echo started; sleep 0.1"
    await lab.launch(lab.set(command=("sh", "-c", script), restart=RestartPolicy.NEVER))
    pod = await lab.pod(lambda pod: pod.phase is Phase.SUCCEEDED)
    assert pod.message.startswith(f"its command ended while `sleep {mark}` still ran in the background")
    assert "or end the script with wait" in (await lab.lines())[-1]
    assert sleepers(mark) == []


async def test_helpers_of_python_and_awaited_processes_are_not_named(lab, mark):
    helper = f"exec -a resource_tracker sleep {mark}"
    script = f"bash -c '{helper}' & sleep 0.2 & wait $!"
    await lab.launch(lab.set(command=("sh", "-c", script), restart=RestartPolicy.NEVER))
    pod = await lab.pod(lambda pod: pod.phase is Phase.SUCCEEDED)
    assert pod.message == ""
    assert sleepers(mark) == []


@pytest.fixture
def at_daemon() -> Iterator[None]:
    program("at")
    if any(process.name() == "atd" for process in psutil.process_iter(["name"])):
        yield
        return
    if os.getuid() != 0:
        pytest.skip("atd does not run")
    with subprocess.Popen([program("atd"), "-f"]) as daemon:
        yield
        daemon.terminate()


async def test_a_job_of_at_is_ended(lab, mark, at_daemon):
    await escape(lab, f"echo 'exec sleep {mark}' | at now 2>/dev/null", mark)
    assert_nothing_left(lab, await lab.destroy(grace_seconds=0.2))
    assert sleepers(mark) == []


@pytest.fixture
def ssh_to_itself(tmp_path: Path) -> Iterator[str]:
    """A server for this user, and the command that logs in to it."""
    server, client, keygen = program("sshd"), program("ssh"), program("ssh-keygen")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": tmp_path / "host",
        "AuthorizedKeysFile": tmp_path / "user.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "PermitRootLogin": "yes",
    }
    (tmp_path / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in options.items()))
    argv = [server, "-D", "-f", str(tmp_path / "sshd_config"), "-E", str(tmp_path / "sshd.log")]
    login = (
        f"{client} -F none -i {tmp_path}/user -p {port} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        f" -o LogLevel=ERROR -o BatchMode=yes {getpass.getuser()}@127.0.0.1"
    )
    with subprocess.Popen(argv) as daemon:
        until = time.monotonic() + 20.0
        while not succeeds(*login.split(), "true"):
            if time.monotonic() > until:
                daemon.terminate()
                pytest.skip(f"this user cannot log in: {(tmp_path / 'sshd.log').read_text()[-300:]}")
            time.sleep(0.2)
        yield login
        daemon.terminate()


async def test_what_a_login_on_this_machine_starts_is_named(lab, mark, ssh_to_itself):
    await escape(lab, f"{ssh_to_itself} 'setsid sleep {mark} </dev/null >/dev/null 2>&1 &'", mark)
    receipt = await lab.destroy(grace_seconds=0.2)
    assert_nothing_left(lab, receipt)
    (pid,) = sleepers(mark)
    named = {left.name: left.reason for left in receipt.possible}
    reason = f"started by ssh while the run existed; if it is the run's, `kill {pid}` ends it"
    assert named[f"{pid} sleep"] == reason
    assert f"{pid} sleep" in receipt.sentence


async def test_a_transient_unit_of_systemd_is_named(lab, mark):
    program("systemd-run")
    if not succeeds("systemd-run", "--user", "--wait", "true"):
        pytest.skip("no systemd serves this user")
    await escape(lab, f"systemd-run --user sleep {mark}", mark)
    receipt = await lab.destroy(grace_seconds=0.2)
    (pid,) = sleepers(mark)
    assert f"{pid} sleep" in {left.name for left in receipt.possible}


@pytest.fixture
def image(lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An image without files: a container gets those of this machine."""
    monkeypatch.delenv("DOCKER_HOST")  # of the laboratory, in which no Engine is
    docker, name = program("docker"), f"l2r-escape-{os.getpid()}"
    if not succeeds(docker, "version"):
        pytest.skip("no Docker Engine answers")
    subprocess.run(["bash", "-c", f"tar cf - -T /dev/null | {docker} import - {name}"], check=True)
    yield name
    subprocess.run([docker, "rm", "-f", name], capture_output=True, check=False)
    subprocess.run([docker, "rmi", "-f", name], capture_output=True, check=True)


TAGS = "-e L2R_LOCAL_RUN -e L2R_RUN_ID"


def docker_run(image: str, mark: str, tags: str) -> str:
    folders = " ".join(f"-v {path}:{path}:ro" for path in ("/usr", "/bin", "/lib", "/lib64") if Path(path).exists())
    return f"docker run -d --network none {tags} {folders} --name {image} {image} /usr/bin/sleep {mark}"


@pytest.mark.parametrize("has_tags", [True, False])
async def test_a_container_is_ended_or_named(lab, mark, image, has_tags):
    await escape(lab, docker_run(image, mark, TAGS if has_tags else ""), mark)
    receipt = await lab.destroy(grace_seconds=0.2)
    assert_nothing_left(lab, receipt)
    if has_tags:
        assert dict(receipt.counted)["container"] == 1
        assert sleepers(mark) == []
    else:
        assert [left.kind for left in receipt.possible if left.name.startswith(image)] == ["Container"]
        assert len(sleepers(mark)) == 1


async def test_a_container_whose_process_was_killed_is_removed(lab, mark, image):
    await escape(lab, docker_run(image, mark, TAGS), mark)
    subprocess.run([program("docker"), "kill", image], capture_output=True, check=True)
    receipt = await lab.destroy(grace_seconds=0.2)
    assert_nothing_left(lab, receipt)
    assert dict(receipt.counted)["container"] == 1
    listed = subprocess.run(
        [program("docker"), "ps", "-aq", "--filter", f"name={image}"], capture_output=True, check=True
    )
    assert listed.stdout == b""


async def test_a_container_that_is_not_started_yet_is_removed(lab, mark, image):
    command = f"docker create --network none {TAGS} --name {image} {image} /usr/bin/sleep 1; exec sleep {mark}"
    await escape(lab, command, mark)
    receipt = await lab.destroy(grace_seconds=0.2)
    assert_nothing_left(lab, receipt)
    assert dict(receipt.counted)["container"] == 1
