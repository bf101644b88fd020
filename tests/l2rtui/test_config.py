"""Settings: file, environment, flags; and a sentence for every error in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from l2rtui import config
from l2rtui.backends.registry import BACKENDS, chosen_backend, make_backend
from l2rtui.config import Settings, load_settings
from l2rtui.errors import ConfigError, UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "config" / "l2rtui").mkdir(parents=True)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "config" / "l2rtui" / "config.toml"
    path.write_text(text)
    return path


def test_without_any_source_the_defaults_hold():
    assert load_settings({}, {}) == Settings()


def test_flags_are_over_the_environment_over_the_file(folder):
    write(folder, 'slots_per_gpu = 2\nslots_per_core = 2\nmax_cpu_slots = 2\nnamespaces = ["a", "b"]\n')
    environ = {"L2RTUI_SLOTS_PER_CORE": "3", "L2RTUI_MAX_CPU_SLOTS": "3", "OTHER": "x"}
    settings = load_settings({"max_cpu_slots": 4, "readonly": None}, environ)
    assert (settings.slots_per_gpu, settings.slots_per_core, settings.max_cpu_slots) == (2, 3, 4)
    assert settings.namespaces == ("a", "b")
    assert settings.readonly is False


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("READONLY", "yes", True),
        ("READONLY", "", False),
        ("NAMESPACES", "a, b,", ("a", "b")),
        ("GRACE_SECONDS", "2.5", 2.5),
        ("GRACE_SECONDS", "", None),
        ("LOG_MAX_BYTES", "8192", 8192),
        ("CONTEXT", "lab", "lab"),
    ],
)
def test_the_environment_is_read_as_people_write(name, text, value):
    assert getattr(load_settings({}, {f"L2RTUI_{name}": text}), name.lower()) == value


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"L2RTUI_SLOT_PER_GPU": "8"}, "L2RTUI_SLOT_PER_GPU is not known. Did you mean L2RTUI_SLOTS_PER_GPU?"),
        ({"L2RTUI_SLOTS_PER_GPU": "many"}, "The variable L2RTUI_SLOTS_PER_GPU is 'many': a whole number is wanted"),
        ({"L2RTUI_SLOTS_PER_GPU": "0"}, "The variable L2RTUI_SLOTS_PER_GPU is 0: write a number from 1 to 64"),
        ({"L2RTUI_READONLY": "maybe"}, "true or false is wanted"),
        ({"L2RTUI_BACKOFF_SECONDS": "nan"}, "write a number from"),
        ({"L2RTUI_BINDING": "shard"}, "L2RTUI_BINDING is 'shard': write env or device-plugin or"),
        ({"L2RTUI_BINDING": "shard"}, "Did you mean shared?"),
        ({"L2RTUI_CONFIG": "/no/such/file"}, "The configuration file /no/such/file cannot be read"),
    ],
)
def test_wrong_variables_are_refused_with_a_sentence(environ, sentence):
    with pytest.raises(ConfigError) as caught:
        load_settings({}, environ)
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("slots_per_gpu = ", "is not TOML"),
        ("slots_per_gpu = true", "is True: a whole number is wanted"),
        ("slots_per_gpu = 2.5", "is 2.5: a whole number is wanted"),
        ("grace_seconds = true", "a number, or nothing is wanted"),
        ("namespaces = 3", "a list of names"),
        ("namespaces = [3]", "a list of names"),
        ("backend = 3", "text is wanted"),
        ("slots = 3", "is not known. Did you mean"),
        ("[slots_per_gpu]", "a whole number is wanted"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(folder, text, sentence):
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {})
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_wrong_flag_is_named():
    with pytest.raises(ConfigError, match="The flag --slots-per-gpu is 'x'"):
        load_settings({"slots_per_gpu": "x"}, {})


def test_settings_made_by_hand_are_checked_too():
    with pytest.raises(ConfigError, match=r"Settings\.backoff_seconds is 0: write"):
        Settings(backoff_seconds=0)


def test_folders_follow_xdg(folder, monkeypatch):
    assert config.state_dir() == folder / "state" / "l2rtui"
    assert config.config_dir() == folder / "config" / "l2rtui"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/invalid")
    monkeypatch.setenv("HOME", "/home/me")
    assert config.state_dir() == Path("/home/me/.local/state/l2rtui")


def test_a_user_without_a_name_has_a_number(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert config.user_name() == f"uid-{os.getuid()}"
    monkeypatch.setenv("USER", "anna")
    assert config.user_name() == "anna"


@pytest.mark.parametrize(
    "name", [name for name in BACKENDS if name not in ("kubernetes", "docker")]
)  # tested in tests/cluster
async def test_backends_are_made_by_name(name):
    backend = make_backend(name, Settings())
    assert backend.name == name
    assert (await backend.snapshot()).nodes
    await backend.close()


def test_an_unknown_backend_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"There is no backend 'locl'\. Did you mean local\?"):
        make_backend("locl", Settings())


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({}, "local"),
        ({".kube/config": "apiVersion: v1\ncurrent-context: phoebe\n"}, "kubernetes"),
        ({".kube/config": 'current-context: ""\n'}, "local"),
        ({".kube/config": "contexts: []\n"}, "local"),
        ({"a": "current-context: ''\n", "b": "current-context: lab\n", "list": "a:b:missing"}, "kubernetes"),
        ({"a": "{contexts: [{name: lab}], current-context: lab}\n", "list": "a"}, "kubernetes"),
    ],
    ids=["no file", "current", "empty", "none", "second of the list", "in one line"],
)
def test_without_a_name_the_kubeconfig_chooses_the_backend(folder, monkeypatch, files, chosen):
    monkeypatch.setenv("HOME", str(folder))
    (folder / ".kube").mkdir()
    environ = {"KUBECONFIG": ":".join(str(folder / name) for name in files.pop("list", "").split(":") if name)}
    for name, text in files.items():
        (folder / name).write_text(text)
    assert chosen_backend(Settings(), environ) == chosen


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"list": "missing"}, "There is no kubeconfig {folder}/missing."),
        ({"a": "garbage: [", "list": "a"}, "The kubeconfig {folder}/a, line 2 is not YAML."),
        ({"a": "", "list": "a"}, "The kubeconfig {folder}/a has no contexts."),
        ({"a": "- 1\n", "list": "a"}, "The kubeconfig {folder}/a is not a mapping."),
        (
            {".kube/config": "current-context: lab\n", "a": "kind: Config\n", "list": "a"},
            "The kubeconfig {folder}/a has no contexts.",
        ),
        (
            {"a": "contexts: [{name: lab}, {name: home}]\n", "list": "a"},
            "The kubeconfig {folder}/a marks no context as the current one (there are: lab, home).",
        ),
        (
            {".kube/config": "contexts: [{name: lab}]\n"},
            "{folder}/.kube/config marks no context as the current one",
        ),
        ({".kube/config": "garbage: [\n"}, "The kubeconfig {folder}/.kube/config, line 2 is not YAML."),
    ],
    ids=[
        "missing",
        "garbage",
        "empty",
        "a list",
        "the list hides the default",
        "none is current",
        "usual",
        "broken",
    ],
)
def test_a_kubeconfig_that_cannot_be_used_never_means_this_machine(folder, monkeypatch, files, sentence):
    monkeypatch.setenv("HOME", str(folder))
    (folder / ".kube").mkdir()
    environ = {"KUBECONFIG": ":".join(str(folder / name) for name in files.pop("list", "").split(":") if name)}
    environ["HOME"] = str(folder)
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(ConfigError) as refused:
        chosen_backend(Settings(), environ)
    assert sentence.format(folder=folder) in str(refused.value)
    assert refused.value.exit_code == 2
    assert "--backend local" in str(refused.value) or "is not" in str(refused.value)


def test_whoever_names_a_context_or_a_namespace_means_kubernetes(folder):
    assert chosen_backend(Settings(context="lab"), {}) == "kubernetes"
    assert chosen_backend(Settings(namespaces=("l2r",)), {}) == "kubernetes"


async def test_without_a_name_or_a_kubeconfig_it_is_this_machine(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    backend = make_backend("", Settings())
    assert backend.name == "local"
    await backend.close()
