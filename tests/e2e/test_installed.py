"""The wheel alone, in a new environment with an empty set of variables: a spec, a run, its metrics and its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this tree, or that of the folder which is to be released."""
    out = Path(os.environ.get("L2R_RELEASE") or tmp_path_factory.mktemp("wheel"))
    if "L2R_RELEASE" not in os.environ:
        argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    (found,) = out.glob("l2rtui-*.whl")
    return found


class Installed:
    """A virtual environment with the wheel; the packages that it needs are those of this one."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        python = str(folder / "venv/bin/python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, timeout=300)
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        # Without this tree, which this environment has as an editable package.
        (packages,) = (Path(path) for path in sys.path if path.endswith("site-packages"))
        for entry in packages.iterdir():
            if "l2rtui" not in entry.name and entry.suffix != ".pth" and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)

    def run(self, *words: str) -> str:
        """Run a verb with HOME alone, in an empty folder; give what it prints."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        done = subprocess.run(
            ["/usr/bin/env", "-i", f"HOME={home}", str(self.folder / "venv/bin/l2rtui"), *words],
            cwd=home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def installed(tmp_path, wheel):
    return Installed(tmp_path, wheel)


def test_a_new_spec_trains_without_the_source_tree(installed):
    assert [*(installed.folder / "venv/lib").glob("python*/site-packages/l2rtui/manifests/cartpole-ppo.yaml")]
    assert re.fullmatch(r"l2rtui \S+( \(commit [0-9a-f]{12}\))?\n", installed.run("--version"))
    installed.run("new", "mine", "--env", "CartPole-v1", "--algorithm", "ppo")
    limits = ("--set", "train.total_env_steps=8192", "--set", "workers.0.replicas=1")
    installed.run("launch", "-f", "mine.yaml", *limits, "--yes")
    installed.run("wait", "mine", "--for=done", "--timeout", "240")
    assert "mine" in installed.run("metrics", "mine", "-o", "name")
    assert "mine" in installed.run("destroy", "mine", "--yes")
    assert installed.run("runs", "-o", "name") == ""
    assert installed.run("plan", "--backend", "demo", "-t", "racing-sac", "-o", "name")


def test_dockerfiles_are_written_without_the_source_tree(installed):
    installed.run("image", "source", "image")
    folder = installed.folder / "home" / "image"
    for name in (
        "docker/Dockerfile.node",
        "docker/Dockerfile.base",
        "docker/l2r-runtime",
        "requirements/image.txt",
    ):
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
    copied = re.findall(r"^COPY (.+) \S+$", (folder / "docker/Dockerfile.node").read_text(), re.MULTILINE)
    assert all((folder / path).exists() for line in copied for path in line.split())


def test_metadata_shows_pictures_and_links_anywhere(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = archive.read(name).decode()
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []
    assert len(re.findall("^Project-URL: ", metadata, re.MULTILINE)) >= 3
