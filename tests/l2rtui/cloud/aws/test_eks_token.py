"""Tokens for EKS, compared with botocore's own signature for the same request at the same moment."""

from __future__ import annotations

import base64
import time
from urllib.parse import parse_qs, urlsplit

import botocore.loaders
import botocore.session
import pytest

from l2rtui.cloud.aws.eks_login import sign_eks_token
from l2rtui.errors import BackendError

CLUSTER = "rl-cluster"
MODELS = botocore.loaders.create_loader()
"""Keeps what it has read: botocore's files of endpoints and rules are megabytes."""


@pytest.fixture(autouse=True)
def account(monkeypatch, tmp_path):
    """Example credentials, and no other settings of this machine."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session/token+=")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def url_of(token):
    text = token.removeprefix("k8s-aws-v1.")
    assert text != token
    assert "=" not in text
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def witness(region):
    """The URL as presigned by botocore's client, with the header for EKS added on the way."""
    session = botocore.session.Session()
    session.register_component("data_loader", MODELS)
    client = session.create_client("sts", region_name=region)
    client.meta.events.register(
        "before-sign.sts.GetCallerIdentity",
        lambda request, **_: request.headers.add_header("x-k8s-aws-id", CLUSTER),
    )
    return client.generate_presigned_url("get_caller_identity", Params={}, ExpiresIn=60, HttpMethod="GET")


def parts(url):
    split = urlsplit(url)
    return split.scheme, split.netloc, split.path or "/", parse_qs(split.query)


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1", "us-gov-west-1"])
def test_it_is_what_botocore_signs(region):
    for _ in range(20):  # both contain the second in which they were made
        ours, theirs = parts(url_of(sign_eks_token(CLUSTER, region)[0])), parts(witness(region))
        if ours[3]["X-Amz-Date"] == theirs[3]["X-Amz-Date"]:
            break
    assert ours == theirs
    assert ours[3]["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert ours[3]["X-Amz-Expires"] == ["60"]
    assert ours[3]["X-Amz-Security-Token"] == ["session/token+="]


def test_it_runs_out_before_the_cluster_drops_it_and_holds_no_secret_key():
    token, expires = sign_eks_token(CLUSTER, "eu-central-1")
    assert 10 * 60 < expires - time.time() < 15 * 60
    assert "secret" not in url_of(token).replace("X-Amz-Security-Token=session", "")


def test_the_cluster_is_part_of_what_is_signed():
    token, other = (parts(url_of(sign_eks_token(name, "eu-central-1")[0]))[3] for name in ("a", "b"))
    assert token["X-Amz-Signature"] != other["X-Amz-Signature"]


def test_the_region_and_the_credentials_of_a_profile_are_taken(account, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    (account / "config").write_text("[profile lab]\nregion = eu-west-1\n")
    (account / "credentials").write_text("[lab]\naws_access_key_id = AKIALAB\naws_secret_access_key = other\n")
    signed = parts(url_of(sign_eks_token(CLUSTER, profile="lab")[0]))
    assert signed[1] == "sts.eu-west-1.amazonaws.com"
    assert signed[3]["X-Amz-Credential"][0].startswith("AKIALAB/")


@pytest.mark.parametrize(("profile", "sentence"), [("", "There are no AWS credentials"), ("nobody", "nobody")])
def test_who_has_no_credentials_is_told_so(monkeypatch, profile, sentence):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(BackendError, match=sentence):
        sign_eks_token(CLUSTER, "eu-central-1", profile)
