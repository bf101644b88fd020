"""Secrets on this machine: from the environment or a prompt into a process, and nowhere else."""

from __future__ import annotations

import json

import pytest

from tests.l2rtui.cli.conftest import eventually

pytestmark = pytest.mark.process

VALUE = "Zq7-very-hidden-9"
SPEC = """\
kind: job
name: t
job:
  command: [sh, -c, 'test "$WANDB_API_KEY" = Zq7-"very"-hidden-9 && echo it is there; exec sleep 600']
  slots: 0
  pod: {secrets: [wandb]}
"""


def all_text(home):
    return {
        path: path.read_text(errors="replace")
        for path in home.rglob("*")
        if path.is_file() and "secrets" not in path.parts and path.name not in ("spec.yaml", "leaky.yaml")
    }


@pytest.mark.slow
def test_a_process_gets_what_its_spec_names_and_no_file_or_line_shows_it(local):
    path = local.home / "spec.yaml"
    path.write_text(SPEC)
    missing = local.run("launch", "-f", str(path), "--yes")
    assert missing.returncode == 3
    assert "there is no secret wandb" in missing.stderr
    assert "l2rtui secret create wandb" in missing.stderr

    made = local.run("secret", "create", "wandb", "--from-env", "WANDB_API_KEY", WANDB_API_KEY=VALUE)
    assert made.returncode == 0, made.stderr
    (kept,) = (local.home / "state" / "l2rtui" / "local" / "secrets").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    again = local.run("secret", "create", "wandb", "--from-env", "WANDB_API_KEY", WANDB_API_KEY="other")
    assert again.returncode == 3
    (shown,) = local.json("secret", "ls")
    assert (shown["secret"], shown["kind"], shown["keys"]) == ("wandb", "variables", ["WANDB_API_KEY"])

    launched = local.run("launch", "-f", str(path), "--yes", "--wait")
    assert launched.returncode == 0, launched.stderr
    eventually(lambda: "it is there" in local.run("logs", "t").stdout, "its line")
    seen = [made.stdout + made.stderr, json.dumps(shown), local.run("describe", "t", "-o", "json").stdout]
    assert not any(VALUE in text for text in seen)
    assert [path for path, text in all_text(local.home).items() if VALUE in text] == []
    assert local.run("destroy", "t", "--yes").returncode == 0
    assert local.run("secret", "delete", "wandb", "--yes").returncode == 0
    assert local.json("secret", "ls") == []
    assert local.run("secret", "delete", "wandb", "--yes").returncode == 1


def test_a_prompt_does_not_echo(local):
    asked = local.terminal("secret", "create", "key", "--prompt", "API_KEY")
    asked.read_until("API_KEY: ")
    asked.type(f"{VALUE}\n")
    assert asked.finish() == 0
    assert VALUE not in asked.text
    kept = json.loads((local.home / "state" / "l2rtui" / "local" / "secrets" / "key.json").read_text())
    assert kept["values"] == {"API_KEY": VALUE}


@pytest.mark.slow
def test_wrong_words_say_what_to_do(local):
    for words, sentence in (
        (("create", "x"), "needs something to keep"),
        (("create", "x", "--from-env", "NOWHERE"), "The variable NOWHERE is not set"),
        (("create", "x", "--from-env", f"A={VALUE}"), "takes the name of a variable"),
        (("create", "x", "--prompt", "A"), "There is no terminal to ask on"),
        (("create", "UP", "--from-env", "HOME"), "is not a name"),
        (("create",), "needs a name"),
    ):
        done = local.run("secret", *words)
        assert done.returncode == 2, words
        assert sentence in done.stderr
        assert VALUE not in done.stderr


def test_a_spec_that_holds_a_key_is_refused_by_the_name_of_its_field(local):
    path = local.home / "leaky.yaml"
    key = "AKIA" + "IOSFODNN7EXAMPLE"
    path.write_text(f"kind: job\nname: t\nenv:\n  AWS_ACCESS_KEY_ID: {key}\njob: {{command: ['true'], slots: 0}}\n")
    for words in (("plan",), ("launch", "--yes")):
        done = local.run(words[0], "-f", str(path), *words[1:])
        assert done.returncode == 2
        assert "leaky.yaml:4: env.AWS_ACCESS_KEY_ID looks like an AWS access key id" in done.stderr
        assert key not in done.stderr + done.stdout
    given = local.run("plan", "-f", str(path), "--set", "env.AWS_ACCESS_KEY_ID=x", "--set", f"env.B={key}")
    assert key not in given.stderr
    assert "--set env.B looks like an AWS access key id" in given.stderr
    objects = local.home / "objects.yaml"
    container = f"{{name: a, image: x, env: [{{name: A, value: {key}}}]}}"
    objects.write_text(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: t}}\nspec: {{containers: [{container}]}}\n")
    done = local.run("plan", "-f", str(objects))
    assert done.returncode == 2
    assert "spec.containers.a.env.A.value looks like an AWS access key id" in done.stderr
