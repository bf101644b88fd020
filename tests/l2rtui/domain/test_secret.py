"""Keys are found in the places where people paste them by mistake; other text is not taken for one."""

from __future__ import annotations

import pytest

from l2rtui.domain.secret import Secret, SecretKind, find_secrets, is_secret_variable

ACCESS = "AKIA" + "IOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"
HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("data", "path", "what"),
    [
        ({"env": {"AWS_ACCESS_KEY_ID": ACCESS}}, ("env", "AWS_ACCESS_KEY_ID"), "an AWS access key id"),
        ({"env": {"AWS_SECRET_ACCESS_KEY": SECRET}}, ("env", "AWS_SECRET_ACCESS_KEY"), "an AWS secret key"),
        ({"env": {"WANDB_API_KEY": HEX}}, ("env", "WANDB_API_KEY"), "a key of Weights & Biases"),
        ({"env": {"X": "ghp_" + "a1" * 18}}, ("env", "X"), "a token of GitHub's"),
        ({"env": {"X": "hf_" + "aB" * 17}}, ("env", "X"), "a token of Hugging Face's"),
        ({"a": ["x", "-----BEGIN RSA PRIVATE KEY-----\nMII"]}, ("a", 1), "a private key"),
        ({"command": ["run", "--password=hunter2"]}, ("command", 1), "a password"),
        ({"command": ["sh", "-c", f"WANDB_KEY={HEX} python x"]}, ("command", 2), "a key"),
        ({"url": "https://lab:secret1@registry.example/x"}, ("url",), "a password in an address"),
        ([{"env": [{"name": "DB_PASSWORD", "value": "Tr0ub4dor"}]}], (0, "env", 0, "value"), "a password or key"),
    ],
)
def test_what_looks_like_a_key_is_found_by_its_place(data, path, what):
    assert list(find_secrets(data)) == [(path, what)]


@pytest.mark.parametrize(
    "data",
    [
        {"image": "registry.example/lab/node:1@sha256:" + "0" * 64},
        {"env": {"GIT_REVISION": HEX, "WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}},
        {"env": {"AWS_SECRET_ACCESS_KEY": "$AWS_SECRET_ACCESS_KEY", "TOKEN_FILE": "/run/l2r/token"}},
        {"pod": {"secrets": ["aws-key"], "pull_secrets": ["registry-login"]}},
        {"valueFrom": {"secretKeyRef": {"name": "aws", "key": "AWS_SECRET_ACCESS_KEY"}}},
        {"command": ["etcd", "--initial-cluster-token=lab", "--token=$TOKEN", "password=$1"]},
        {"train": {"max_tokens": 100, "tokens": 5, "monkey": "Banana1234"}},
        {"url": "s3://bucket/key=1/part", "endpoint": "tcp://learner:5555"},
    ],
)
def test_what_only_resembles_one_is_left_alone(data):
    assert list(find_secrets(data)) == []


def test_values_are_hidden_by_their_names():
    names = ("WANDB_API_KEY", "L2R_TOKEN_FILE", "db_password", "L2R_SEED")
    assert list(filter(is_secret_variable, names)) == ["WANDB_API_KEY", "db_password"]


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        (Secret("Bad Name", SecretKind.VARIABLES, (("A", "x"),)), "is not a name"),
        (Secret("good", SecretKind.VARIABLES, ()), "would hold nothing"),
        (Secret("good", SecretKind.VARIABLES, (("1A", "x"),)), "is not a variable name"),
        (Secret("good", SecretKind.VARIABLES, (("L2R_RUN", "x"),)), "l2rtui sets L2R_RUN itself"),
        (Secret("good", SecretKind.VARIABLES, (("A", ""),)), "A is empty"),
        (Secret("good", SecretKind.VARIABLES, (("A", "hid\0den"),)), "no variable can hold"),
        (Secret("good", SecretKind.VARIABLES, (("A", "y" * (1 << 20)),)), "larger than 512 KiB"),
        (Secret("good", SecretKind.REGISTRY, ((".dockerconfigjson", "{}"),)), ""),
    ],
)
def test_secrets_say_what_is_wrong_with_them_and_never_their_values(secret, problem):
    assert problem in secret.problem()
    assert "hid" not in secret.problem()
    assert "values" not in repr(secret)
