"""The one file in a root folder of a shell, tar and gzip: no Python, no network, no packages."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import runpy
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "tar", "gzip", "tail", "uname", "mkdir", "rm", "sleep", "cat", "mount", "env")
DEADLINE_SECONDS = 90.0
SPEC = """
kind: job
name: carried
job:
  command: [sh, -c, "echo it runs; sleep 600"]
"""
# The namespaces form the container: separate processes, mounts and (no) network, as root in it for any user.
ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--user", "--map-root-user")
ENVIRONMENT = "HOME=/home TERM=xterm-256color PATH=/bin"
INSIDE = f"mount -t proc proc {{root}}/proc && exec chroot {{root}} /bin/env -i {ENVIRONMENT} {{words}}"


@pytest.fixture(scope="session")
def one_file(tmp_path_factory):
    if release := os.environ.get("L2R_RELEASE"):  # what is to be released, not another build of it
        return Path(release, "l2rtui").resolve()
    out = tmp_path_factory.mktemp("onefile") / "l2rtui"
    words = [
        sys.executable,
        str(ROOT / "docker/onefile/build.py"),
        "--quick",
        "--requirements",
        str(ROOT / "requirements/serve.txt"),
    ]
    done = subprocess.run([*words, "--out", str(out)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_spec_trains_with_the_runtime_on_the_path(one_file, tmp_path):
    """Outside of the source tree; the file has the app, and a runtime on the PATH the commands of the run."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"

    def run(*words):
        argv = ["/usr/bin/env", "-i", f"HOME={tmp_path}", f"PATH={path}", str(one_file), *words]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    assert re.fullmatch(r"l2rtui \S+( \(commit [0-9a-f]{12}\))?\n", run("--version"))
    run("new", "mine", "--env", "CartPole-v1", "--algorithm", "ppo")
    limits = ("--set", "train.total_env_steps=8192", "--set", "workers.0.replicas=1")
    run("launch", "-f", "mine.yaml", *limits, "--yes")
    run("wait", "mine", "--for=done", "--timeout", "240")
    assert "mine" in run("metrics", "mine", "-o", "name")
    assert "mine" in run("destroy", "mine", "--yes")
    assert run("runs", "-o", "name") == ""
    assert run("plan", "--backend", "demo", "-t", "racing-sac", "-o", "name")
    run("image", "source", "image")
    assert (tmp_path / "image/docker/Dockerfile.node").read_bytes() == (
        ROOT / "docker/Dockerfile.node"
    ).read_bytes()


@pytest.fixture(scope="session")
def machine(one_file, tmp_path_factory):
    """A root folder with the few tools that every login node has; yields the folder."""
    root = tmp_path_factory.mktemp("machine")
    for folder in ("bin", "dev", "proc", "tmp", "home"):
        (root / folder).mkdir()
    (root / "dev/null").touch(mode=0o666)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        shutil.copy(found, root / "bin" / tool)
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(", listed):
            copy = root / library.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copy(library, copy)
    # C libraries that the interpreter needs in addition to the tools.
    for name in ("libm.so.6", "libdl.so.2", "libpthread.so.0", "libutil.so.1", "librt.so.1", "libresolv.so.2"):
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
        place = re.search(rf"{re.escape(name)} .*x86-64.* => (\S+)", listed) or re.search(
            rf"{re.escape(name)} .* => (\S+)", listed
        )
        assert place, name
        copy = root / place[1].lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place[1], copy)
    shutil.copy(one_file, root / "l2rtui")
    (root / "run.yaml").write_text(SPEC)
    return root


def command(machine: Path, words: str) -> list[str]:
    return [*ISOLATED, "sh", "-c", INSIDE.format(root=machine, words=words)]


def call(machine: Path, words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(machine, words), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


def test_nothing_is_left_out_that_the_sources_import():
    build = runpy.run_path(str(ROOT / "docker/onefile/build.py"))
    sources = [path.read_text() for package in ("l2rtui", "runtime") for path in (ROOT / package).rglob("*.py")]
    imported = {name for text in sources for name in re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)}
    assert not imported & build["LEFT_OUT"]
    assert not [name for name in imported if build["LEFT_OUT_MODULES"].match(f"_{name}.")]


@pytest.mark.slow
def test_it_runs_where_there_is_no_python_and_unpacks_once(machine):
    first = call(machine, "/l2rtui --version")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("l2rtui ")
    unpacked = list((machine / "home/.cache/l2rtui").iterdir())
    assert len(unpacked) == 1
    made = unpacked[0].stat().st_ctime_ns
    assert call(machine, "/l2rtui --version").stdout == first.stdout
    assert list((machine / "home/.cache/l2rtui").iterdir()) == unpacked
    assert unpacked[0].stat().st_ctime_ns == made


@pytest.mark.slow
def test_it_plans_a_run(machine):
    done = call(machine, "/l2rtui plan --backend demo -f /run.yaml -o json")
    assert done.returncode == 0, done.stderr
    assert '"carried' in done.stdout


@pytest.mark.slow
def test_a_run_on_this_machine_outlives_the_verb_that_launched_it(machine):
    launch = "/l2rtui launch --backend local -f /run.yaml --wait --yes"
    words = (
        f"sh -c '{launch} && /l2rtui logs carried --backend local && /l2rtui destroy carried --backend local --yes'"
    )
    done = call(machine, words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it runs" in done.stdout


def test_a_cut_file_says_so_and_leaves_nothing(machine, one_file):
    whole = one_file.read_bytes()
    (machine / "cut").write_bytes(whole[: len(whole) // 2])
    (machine / "cut").chmod(0o755)
    done = call(machine, "/bin/env XDG_CACHE_HOME=/tmp/elsewhere /cut --version")
    assert done.returncode == 1
    assert "Copy it again" in done.stderr
    assert list((machine / "tmp/elsewhere/l2rtui").iterdir()) == []


def test_a_cache_that_cannot_be_written_says_what_to_set(machine):
    done = call(machine, "/bin/env XDG_CACHE_HOME=/proc/nowhere /l2rtui --version")
    assert done.returncode == 1
    assert "Set XDG_CACHE_HOME" in done.stderr


def test_variables_for_another_python_change_nothing(machine):
    (machine / "tmp/json.py").write_text("raise SystemExit('not this one')")
    done = call(machine, "/bin/env PYTHONPATH=/tmp PYTHONHOME=/nowhere /l2rtui pods --backend demo -o json")
    assert done.returncode == 0, done.stderr


def test_the_screen_draws_its_first_frame_and_leaves_when_told(machine):
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover  (the child becomes the app)
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        words = command(machine, "/l2rtui --backend demo")
        os.execvp(words[0], words)  # noqa: S606  (pty.fork knows no other way)
    seen = b""
    try:
        until = time.monotonic() + DEADLINE_SECONDS
        while b"Slots" not in seen and time.monotonic() < until:
            if select.select([terminal], [], [], 1.0)[0]:
                try:
                    seen += os.read(terminal, 65_536)
                except OSError:
                    break
        assert b"\x1b[?1049h" in seen
        assert b"Slots" in seen, seen[-2000:]
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(child, 0)
