"""Settings, the launcher's variables and the command line: right values in, sentences for wrong ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.presets import RACING
from runtime.base.training import Settings, SettingsError, describe, from_mapping, parse
from runtime.rl.roles.launch_context import Context

ROOT = Path(__file__).parents[3]
DEFAULTS = replace(Settings(), sac=RACING["sac"])


def l2r(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("L2R_")}
    return subprocess.run(
        [sys.executable, "-m", "runtime", *arguments],
        env={**environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_defaults_are_valid_and_every_setting_is_explained() -> None:
    assert parse("") == from_mapping({}) == DEFAULTS
    described = list(describe(Settings()))
    assert [name for name, _, _ in described] == [each.name for each in fields(Settings)]
    assert all(len(meaning.split()) > 2 for _, _, meaning in described)


def test_settings_survive_json() -> None:
    text = "{" + ", ".join(f'"{name}": {value}' for name, value, _ in describe(Settings())) + "}"
    assert parse(text) == DEFAULTS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_env": 4}, "did you mean 'num_envs'"),
        ({"zzz": 1}, "known are environment"),
        ({"num_envs": "4"}, "'4'; it must be a whole number"),
        ({"num_envs": True}, "must be a whole number"),
        ({"num_envs": 0}, "at least 1"),
        ({"num_envs": 2.5}, "must be a whole number"),
        ({"updates_per_step": 0}, "above 0"),
        ({"hidden": [64, "x"]}, "list of whole numbers"),
        ({"hidden": [0]}, "at least 1"),
        ({"hidden": 64}, "list of whole numbers"),
        ({"sac": [1]}, "must be an object"),
        ({"device": "tpu"}, "one of auto, cpu"),
        ({"total_updates": "all"}, "whole number or null"),
        ({"band_steps": 10}, "at least two segments"),
    ],
)
def test_a_wrong_setting_is_a_sentence(given: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        from_mapping(given)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_what_is_no_number_to_train_with_is_refused_wherever_it_stands(number: str) -> None:
    for text in (f'{{"updates_per_step": {number}}}', f'{{"sac": {{"target_entropy": {number}}}}}'):
        with pytest.raises(SettingsError, match=f"hold {number}, which is no number"):
            parse(text)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "1"])
def test_what_is_no_object_is_a_sentence(text: str) -> None:
    with pytest.raises(SettingsError, match="JSON"):
        parse(text)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "L2R_ENDPOINT is not set"),
        ({"L2R_ENDPOINT": "nowhere"}, "L2R_ENDPOINT: the endpoint 'nowhere'"),
        ({"L2R_CONFIG": "{"}, "L2R_CONFIG: the settings are not JSON"),
        ({"L2R_INDEX": "-1"}, "L2R_INDEX is '-1'"),
        ({"L2R_SEED": "x"}, "L2R_SEED is 'x'"),
        ({"L2R_CPUS": "0"}, "L2R_CPUS is '0'"),
        ({"L2R_CPUS": "many"}, "L2R_CPUS is 'many'"),
        ({"L2R_TOKEN_FILE": "/no/such/file"}, "the token file /no/such/file cannot be read"),
        ({"L2R_RUN": "a\nb"}, "L2R_RUN must be"),
    ],
)
def test_a_wrong_variable_is_a_sentence_that_names_it(variables: dict[str, str], words: str) -> None:
    good = {"L2R_ENDPOINT": "ipc:///tmp/x"} if variables else {}
    with pytest.raises(SetupError, match=words):
        Context.from_environment({**good, **variables}, "worker")


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(SetupError, match="must be one line"):
        Context.from_environment(
            {"L2R_ENDPOINT": "ipc:///tmp/x", "L2R_TOKEN_FILE": str(tmp_path / "token")}, "worker"
        )


def test_threads_stay_within_the_cores_given() -> None:
    config = json.dumps({"threads": 8})
    environ = {"L2R_ENDPOINT": "ipc:///tmp/x", "L2R_CONFIG": config}
    assert Context.from_environment({**environ, "L2R_CPUS": "3.5"}, "learner").threads == 3
    assert Context.from_environment({**environ, "L2R_CPUS": "0.5"}, "learner").threads == 1
    assert Context.from_environment({**environ, "L2R_CPUS": "8"}, "worker").threads == 1


@pytest.mark.process
def test_help_and_version_and_config() -> None:
    helped = l2r("--help")
    assert helped.returncode == 0
    assert "examples:" in helped.stdout
    assert l2r("--version").stdout.startswith("l2r-runtime ")
    shown = l2r("config", "--json", L2R_CONFIG='{"num_envs": 3}')
    assert json.loads(shown.stdout)["num_envs"] == 3
    assert "Copies of the environment" in l2r("config").stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "words"),
    [
        (("config",), {"L2R_CONFIG": '{"num_env": 3}'}, contract.EXIT_USAGE, "did you mean 'num_envs'"),
        (("worker",), {}, contract.EXIT_USAGE, "L2R_ENDPOINT is not set"),
        (("juggle",), {}, contract.EXIT_USAGE, "invalid choice"),
        ((), {}, contract.EXIT_USAGE, "required"),
        (("learner",), {"L2R_ENDPOINT": "ipc:///tmp/x"}, contract.EXIT_USAGE, "L2R_DIR is not set"),
        (
            ("worker",),
            {"L2R_ENDPOINT": "ipc:///tmp/x", "L2R_CONFIG": '{"environment": "chess"}'},
            contract.EXIT_USAGE,
            "unknown environment 'chess'",
        ),
        (
            ("learner",),
            {"L2R_ENDPOINT": "tcp://0.0.0.0:5555", "L2R_DIR": "/tmp"},
            contract.EXIT_USAGE,
            "there is no token",
        ),
        (
            ("learner",),
            {"L2R_ENDPOINT": "ipc:///tmp/x", "L2R_DIR": "/dev/null/x"},
            contract.EXIT_FAILED,
            "/dev/null/x",
        ),
    ],
)
@pytest.mark.process
def test_wrong_use_ends_with_a_sentence_and_its_code(
    arguments: tuple[str, ...], variables: dict[str, str], code: int, words: str
) -> None:
    ended = l2r(*arguments, **variables)
    assert ended.returncode == code
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("statement", "banned"),
    [
        (
            "import runtime.cli; runtime.cli.main(['config'])",
            {"torch", "zmq", "numpy", "safetensors", "tensorboardX"},
        ),
        (
            "from runtime.exchange.protocol import framing, messages; import runtime.exchange.machines.membership",
            {"torch", "zmq", "numpy"},
        ),
        (
            "from runtime.rl.checkpoints import counters; import runtime.exchange.machines.session",
            {"torch", "zmq", "numpy"},
        ),
        ("import runtime.rl.roles.rate_limiter", {"torch", "zmq", "numpy"}),
        (
            "import runtime.rl.roles.worker, runtime.rl.roles.evaluator",
            {"torch", "safetensors", "tensorboardX", "gymnasium"},
        ),
    ],
)
@pytest.mark.process
def test_nothing_is_imported_that_is_not_needed(statement: str, banned: set[str]) -> None:
    script = f"{statement}\nimport sys; print('LOADED', *sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not banned & set(shown.stdout.rpartition("LOADED")[2].split())


def test_pods_that_cannot_be_told_apart_by_index_differ_by_their_id():
    environ = {"L2R_ENDPOINT": "tcp://127.0.0.1:5555"}
    first, again, other = (
        Context.from_environment({**environ, "L2R_POD_ID": uid}, "worker").index for uid in ("a-1", "a-1", "b-2")
    )
    assert first == again != other
    assert Context.from_environment({**environ, "L2R_POD_ID": "a-1", "L2R_INDEX": "3"}, "worker").index == 3
