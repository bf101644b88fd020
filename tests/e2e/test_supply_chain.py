"""Pins with hashes, and the bill of materials of the one file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def pins(path: Path) -> dict[str, str]:
    """Names, without extras, and the lines below each, up to the next name."""
    blocks = re.split(r"\n(?=[a-z])", path.read_text())
    return {re.split(r"\[|==", block)[0]: block for block in blocks if re.match(r"[a-z]", block)}


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock.name != "torch.txt"], ids=lambda lock: lock.name)
def test_every_pin_has_its_hashes_and_torch_stands_apart(lock):
    found = pins(lock)
    assert found
    assert not [name for name, block in found.items() if not re.search(r"--hash=sha256:[0-9a-f]{64}", block)]
    assert not {"torch", "triton"} & set(found), "its index chooses the build, so it has no hash"


def test_a_version_is_the_same_in_every_set():
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        for line in lock.read_text().splitlines():
            if pin := re.match(r"([a-z][^=[]*)(?:\[.*\])?==([^ ;]+)( ; .*)?", line):
                versions.setdefault(f"{pin[1]}{pin[3] or ''}".rstrip(" \\"), set()).add(pin[2])
    assert {name: sorted(found) for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.process
def test_the_bill_of_the_one_file_names_each_package_by_its_hashes(tmp_path):
    out, lock = tmp_path / "l2rtui.cdx.json", ROOT / "requirements/serve.txt"
    command = [sys.executable, str(ROOT / "docker/sbom.py"), "--requirements", str(lock), "--out", str(out)]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    document = json.loads(out.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "l2rtui"
    components = {item["name"]: item for item in document["components"]}
    foreign = {name for name, block in pins(lock).items() if "sys_platform == 'win32'" in block}
    assert set(components) == set(pins(lock)) - foreign | {"python"}
    for name in ("textual", "aiohttp"):
        hashes = {digest["content"] for digest in components[name]["hashes"]}
        assert hashes == set(re.findall(r"sha256:([0-9a-f]{64})", pins(lock)[name]))
        assert components[name]["purl"] == f"pkg:pypi/{name}@{components[name]['version']}"


@pytest.mark.process
def test_an_image_that_is_not_there_is_a_sentence(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "docker/sbom.py"),
        "--image",
        "nosuch:1",
        "--out",
        str(tmp_path / "x.json"),
    ]
    done = subprocess.run(
        command, check=False, timeout=60, capture_output=True, text=True, env={"PATH": str(tmp_path / "missing")}
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "docker" in done.stderr
