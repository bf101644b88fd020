"""Kubeconfig files: merged, resolved to server and user, and named in errors without their secrets."""

from __future__ import annotations

import base64
import json
import os

import pytest
import rich.pretty

from l2rtui.backends.kubernetes.api.kubeconfig import Oidc, context_names, impersonating, load_access
from l2rtui.backends.kubernetes.api.login import ApiLogin
from l2rtui.errors import ConfigError

B64 = base64.b64encode(b"PEM").decode()


def write(path, *, current="", contexts=(), clusters=(), users=()):
    config = {
        "current-context": current or None,
        "contexts": [{"name": name, "context": body} for name, body in contexts],
        "clusters": [{"name": name, "cluster": body} for name, body in clusters],
        "users": [{"name": name, "user": body} for name, body in users],
    }
    path.write_text(json.dumps(config))  # JSON is YAML
    return str(path)


def simple(path, **user):
    return write(
        path,
        current="c",
        contexts=[("c", {"cluster": "k", "user": "u", "namespace": "ml"})],
        clusters=[("k", {"server": "https://k:6443/", "certificate-authority-data": B64})],
        users=[("u", user)],
    )


# --- kubeconfig ------------------------------------------------------------------------------------------------
def test_a_kubeconfig_tells_server_user_and_namespace(tmp_path):
    access = load_access(kubeconfig=simple(tmp_path / "k", token="hidden-7"))
    assert (access.context, access.server, access.namespace) == ("c", "https://k:6443", "ml")
    assert (access.ca, access.user.token) == (b"PEM", "hidden-7")


def test_what_holds_tokens_or_keys_never_prints_them(tmp_path):
    access = load_access(kubeconfig=simple(tmp_path / "k", token="hidden-7"))
    login = ApiLogin("Bearer hidden-7", key=b"hidden-7")
    for value in (access, access.user, login, Oidc("hidden-7", "hidden-7", client_secret="hidden-7")):
        assert "hidden-7" not in f"{value} {value!r} {rich.pretty.pretty_repr(value)}"


def test_of_several_files_the_first_word_counts_and_paths_start_at_their_file(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ca.pem").write_bytes(b"CA")
    item = write(tmp_path / "a" / "k", current="first", contexts=[("first", {"cluster": "k", "user": "u"})],
                users=[("u", {"token": "one"})])  # fmt: skip
    two = write(tmp_path / "b" / "k", current="second", contexts=[("second", {"cluster": "k", "user": "u"})],
                clusters=[("k", {"server": "https://k", "certificate-authority": "ca.pem"})],
                users=[("u", {"token": "two"})])  # fmt: skip
    environ = {"KUBECONFIG": os.pathsep.join([item, str(tmp_path / "missing"), two])}
    access = load_access(environ=environ)
    assert (access.context, access.user.token, access.ca) == ("first", "one", b"CA")
    assert load_access("second", environ=environ).context == "second"
    assert context_names(environ=environ) == (("first", "second"), "first")


def test_without_a_kubeconfig_the_pods_own_account_serves(tmp_path, monkeypatch):
    for name, text in (("token", "secret\n"), ("ca.crt", "CA"), ("namespace", "ml\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("l2rtui.backends.kubernetes.api.kubeconfig.SERVICE_ACCOUNT", tmp_path)
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = load_access(environ=environ)
    assert (access.context, access.server, access.namespace) == ("in-cluster", "https://[fd00::1]:443", "ml")
    assert access.user.token_file == str(tmp_path / "token")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [}", "line 1 is not YAML"),
        ("just text", "is not a mapping"),
        ("contexts: {a: b}", "contexts is not a list"),
        ("contexts: [{}]", "has no name"),
        ("contexts: []", "has no current context"),
        ("current-context: x", "has no context 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", "has no cluster 'y'"),
        ("token: secret-token: broken", "is not YAML"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named_without_its_secrets(tmp_path, text, sentence):
    path = tmp_path / "k"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_access(kubeconfig=str(path))
    assert sentence in str(caught.value)
    assert "secret-token" not in str(caught.value)


def test_a_variable_of_a_plugin_without_a_value_is_empty(tmp_path):
    env = [{"name": "HTTPS_PROXY", "value": None}, {"name": "A", "value": "1"}, {"name": "B"}]
    access = load_access(kubeconfig=simple(tmp_path / "k", exec={"command": "login", "args": ["x"], "env": env}))
    assert access.user.exec.env == (("HTTPS_PROXY", ""), ("A", "1"), ("B", ""))


def test_a_kubeconfig_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="There is no kubeconfig"):
        load_access(kubeconfig=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="No kubeconfig was found"):
        load_access(environ={"HOME": str(tmp_path)})


# --- acting as another user ------------------------------------------------------------------------------------
def headers(access):
    return [(name.removeprefix("Impersonate-"), value) for name, value in access.user.impersonate]


def test_the_kubeconfig_names_whom_to_act_as(tmp_path):
    path = simple(
        tmp_path / "k",
        **{"as": "anna", "as-uid": 7, "as-groups": ["a", "b"], "as-user-extra": {"Example.org/x %": ["1", "2"]}},
    )
    access = load_access(kubeconfig=path)
    extra = "Extra-example.org%2Fx%20%25"
    assert headers(access) == [
        ("User", "anna"),
        ("Group", "a"),
        ("Group", "b"),
        ("Uid", "7"),
        (extra, "1"),
        (extra, "2"),
    ]
    assert access.acting_user == "anna (impersonated by u)"
    assert headers(load_access(kubeconfig=simple(tmp_path / "k", **{"as-groups": ["a"]}))) == []


@pytest.mark.parametrize(
    ("user", "groups", "expected"),
    [
        ("", (), [("User", "anna"), ("Group", "a")]),
        ("bert", (), [("User", "bert"), ("Group", "a")]),
        ("", ("b", "c"), [("Group", "b"), ("Group", "c"), ("User", "anna")]),
        ("bert", ("b",), [("User", "bert"), ("Group", "b")]),
    ],
)
def test_options_replace_their_own_part_of_it(tmp_path, user, groups, expected):
    access = load_access(kubeconfig=simple(tmp_path / "k", **{"as": "anna", "as-groups": ["a"]}))
    assert headers(impersonating(access, user, groups)) == expected


def test_groups_need_a_user_and_names_no_line_breaks(tmp_path):
    access = load_access(kubeconfig=simple(tmp_path / "k"))
    assert impersonating(access) == access
    with pytest.raises(ConfigError, match="no user to act as"):
        impersonating(access, groups=("a",))
    with pytest.raises(ConfigError, match="holds characters that no name has"):
        impersonating(access, "anna\r\nAuthorization: x")
    with pytest.raises(ConfigError, match="holds characters that no name has"):
        load_access(kubeconfig=simple(tmp_path / "k", **{"as": "anna\nx"}))
    with pytest.raises(ConfigError, match="as-groups is not a list"):
        load_access(kubeconfig=simple(tmp_path / "k", **{"as": "anna", "as-groups": "a"}))


@pytest.mark.parametrize("data", ["\ufeffeHg=", "x"])
def test_a_certificate_that_is_not_base64_is_a_sentence(tmp_path, data):
    cluster = {"server": "https://h:6443", "certificate-authority-data": data}
    contexts, users = [("a", {"cluster": "c", "user": "u"})], [("u", {"token": "t"})]
    path = write(tmp_path / "k", current="a", contexts=contexts, clusters=[("c", cluster)], users=users)
    with pytest.raises(ConfigError, match="not base64"):
        load_access(kubeconfig=path)
