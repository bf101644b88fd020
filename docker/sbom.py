# ruff: noqa: INP001  (a script, no package)
"""Write the bill of materials of the one file or of an image, as CycloneDX 1.6 (ECMA-424).

    python docker/sbom.py --requirements requirements/serve.txt --out dist/l2rtui.cdx.json
    python docker/sbom.py --image l2rtui-node --out dist/l2rtui-node.cdx.json

Of the one file: the interpreter, and each pinned package with the hashes that it was installed by. Of an image:
what its package managers say, Debian's and Python's, and the digest of the image.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

# Run inside the image, whose Python and dpkg know what is in it; one line of JSON, whatever else the image prints.
LISTING = r"""
import json, subprocess, importlib.metadata as m
form = "${Package}\t${Version}\t${Architecture}\n"
rows = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True)
print(json.dumps({
    "python": sorted({(d.metadata["Name"], d.version) for d in m.distributions()}),
    "debian": [line.split("\t") for line in rows.stdout.splitlines()],
}))
"""


def main() -> int:
    """Write the document; print where it is and how many components it names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--requirements", type=Path, help="pinned packages of the one file")
    subject.add_argument("--image", help="image on this machine's Docker Engine")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.image:
        document = bill(image(options.image), of_image(options.image))
    else:
        # Read, not imported: the environment that builds the one file has its packages and not this one.
        own = re.search(
            r'__version__ = "(.+)"', (Path(__file__).parents[1] / "l2rtui/__init__.py").read_text("utf-8")
        )
        program = Component(name="l2rtui", version=own and own[1], type=ComponentType.APPLICATION)
        document = bill(program, of_requirements(options.requirements))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    JsonV1Dot6(document).output_to_file(str(options.out), allow_overwrite=True, indent=2)
    print(f"{options.out}: {len(document.components)} components")
    return 0


def bill(subject: Component, parts: Iterator[Component]) -> Bom:
    """Return the document of a subject and its parts."""
    document = Bom(components=parts)
    document.metadata.component = subject
    document.register_dependency(subject, document.components)
    return document


def of_requirements(path: Path) -> Iterator[Component]:
    """Yield the interpreter that is brought along, and the packages that are pinned for this system."""
    interpreter = platform.python_version()
    yield component("python", interpreter, PackageURL("generic", name="python", version=interpreter))
    for block in re.split(r"\n(?=[a-z])", path.read_text("utf-8")):
        first, *rest = block.splitlines()
        if not re.match(r"[a-z]", first):
            continue  # the comment at the head
        pin = Requirement(first.removesuffix("\\"))
        if pin.marker is None or pin.marker.evaluate():
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", "\n".join(rest))
            yield pypi(pin.name, str(pin.specifier).removeprefix("=="), hashes)


def image(name: str) -> Component:
    """Return the image itself, by the digest of its content.

    Raises:
        SystemExit: the Engine does not answer, or has no such image.
    """
    found = run("docker", "image", "inspect", "--format", "{{.Id}}", name).strip()
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=found.removeprefix("sha256:"))]
    return Component(name=name, version=found, type=ComponentType.CONTAINER, hashes=hashes)


def of_image(name: str) -> Iterator[Component]:
    """Yield Debian's and Python's packages in an image, run without network, rights or a disk to write to."""
    isolated = ("--network", "none", "--read-only", "--cap-drop", "ALL", "--entrypoint", "/opt/l2r/bin/python")
    listed = json.loads(run("docker", "run", "--rm", *isolated, name, "-c", LISTING).splitlines()[-1])
    for package, release, architecture in listed["debian"]:
        qualifiers = {"arch": architecture}
        purl = PackageURL("deb", "debian", package, release, qualifiers)
        yield component(package, release, purl)
    for package, release in listed["python"]:
        yield pypi(package, release, [])


def pypi(name: str, release: str, hashes: list[str]) -> Component:
    """Return a package of PyPI with the SHA-256 of each file of that version."""
    digests = [HashType(alg=HashAlgorithm.SHA_256, content=content) for content in hashes]
    return component(name, release, PackageURL("pypi", name=name.lower(), version=release), digests)


def component(name: str, release: str, purl: PackageURL, hashes: list[HashType] | None = None) -> Component:
    """Return a library with its package URL, which names it among all others too."""
    return Component(
        name=name, version=release, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl), hashes=hashes
    )


def run(*command: str) -> str:
    """Return what a command prints; it ends this program with its error when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit(f"there is no {command[0]} here; it lists what is in an image")
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command[0]} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
