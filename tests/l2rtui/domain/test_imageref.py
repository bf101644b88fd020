"""Names of images, parsed like Docker does."""

from __future__ import annotations

import pytest

from l2rtui.domain.imageref import ImageRef, ecr_region, is_loopback, parse_image

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("debian", ImageRef("docker.io", "debian")),
        ("lab/node:1.0", ImageRef("docker.io", "lab/node", "1.0")),
        ("localhost/node", ImageRef("localhost", "node")),
        ("127.0.0.1:5000/a/b:x", ImageRef("127.0.0.1:5000", "a/b", "x")),
        (f"registry.example/n:1@{DIGEST}", ImageRef("registry.example", "n", "1", DIGEST)),
        ("docker.io/debian:12", ImageRef("docker.io", "library/debian", "12")),
    ],
)
def test_names_are_read(text, wanted):
    assert parse_image(text) == wanted
    assert parse_image(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["", "Upper/Case", "a:b:c", "a@sha256:12", "a/../b", "regi stry.x/a", "a:-x"])
def test_what_is_no_name_is_refused(text):
    with pytest.raises(ValueError, match=r"is not|no name"):
        parse_image(text)


def test_a_pinned_name_keeps_its_tag_for_people():
    image = parse_image("registry.example/n:1")
    assert str(image.pinned(DIGEST)) == f"registry.example/n:1@{DIGEST}"
    assert (image.reference, image.pinned(DIGEST).reference) == ("1", DIGEST)
    assert parse_image("n").reference == "latest"
    assert str(image.pinned(DIGEST).tagged("2")) == "registry.example/n:2"


def test_registries_are_known_by_their_names():
    assert ecr_region("123456789012.dkr.ecr.eu-west-1.amazonaws.com") == "eu-west-1"
    assert ecr_region("dkr.ecr.eu-west-1.amazonaws.com.evil.example") == ""
    assert is_loopback("127.0.0.1:5000")
    assert is_loopback("localhost")
    assert not is_loopback("localhost.example:5000")
