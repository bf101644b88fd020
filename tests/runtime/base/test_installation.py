"""The command that adds an extra, for each way of installing; none names this program, which no index has."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.base import installation
from runtime.base.installation import install_hint, packages_of

TREE = Path(installation.__file__).resolve().parents[2]
EXTRAS = ("runtime", "aws", "docker", "serve", "sweeps", "datasets", "policies")


@pytest.mark.parametrize(
    ("executable", "extra", "step"),
    [
        (f"{TREE}/.venv/bin/python", "runtime", f"Run `make setup` in {TREE}."),
        (f"{TREE}/.venv/bin/python", "aws", f"Run `.venv/bin/pip install -e '.[aws]'` in {TREE}."),
        ("/opt/lab/bin/python3", "aws", "Run `/opt/lab/bin/python3 -m pip install boto3`."),
        ("/home/a/.local/pipx/venvs/l2rtui/bin/python", "sweeps", "Run `pipx inject l2rtui optuna`."),
        ("/home/a/.local/share/uv/tools/l2rtui/bin/python", "datasets",
         "Run `uv pip install --python /home/a/.local/share/uv/tools/l2rtui/bin/python h5py`."),
        ("/home/a/.cache/l2rtui/0a/bin/l2rtui-python", "runtime",
         "The one file has no runtime: put the l2r-runtime of another environment on your PATH."),
        ("/opt/lab/bin/python3", "policies",
         "Run `/opt/lab/bin/python3 -m pip install 'imageio[ffmpeg]' onnx onnxruntime onnxscript`."),
    ],
)  # fmt: skip
def test_the_step_fits_the_way_of_installing(executable, extra, step):
    assert install_hint(extra, executable) == step


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_has_packages_of_the_index(extra):
    assert packages_of(extra)
    assert "l2rtui" not in install_hint(extra, "/opt/lab/bin/python3")


def test_without_metadata_the_extra_is_named(monkeypatch):
    def requires(name):
        raise installation.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.importlib.metadata, "requires", requires)
    assert install_hint("datasets", "/opt/l2r/bin/python3") == "Install the packages of the extra datasets."
