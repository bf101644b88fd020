"""YAML from outside: small text that expands to huge values is refused before expansion, by either loader."""

from __future__ import annotations

import pytest
import yaml

from l2rtui import bounded_yaml
from l2rtui.bounded_yaml import TooMuchError
from l2rtui.cloud.aws.cluster_spec import load_cluster
from l2rtui.cloud.aws.eks_login import _read
from l2rtui.errors import ConfigError, SpecError
from l2rtui.services.spec import spec_file

LOADERS = (yaml.SafeLoader, *((yaml.CSafeLoader,) if hasattr(yaml, "CSafeLoader") else ()))
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
"""A billion values in a few hundred bytes."""


@pytest.mark.parametrize("loader", LOADERS)
def test_plain_values_are_as_pyyaml_makes_them(loader):
    text = "a: &a {b: [1, 2.5, yes, null, 2020-01-02]}\nc: [*a, *a]\nd: {<<: *a, e: f}\n"
    assert bounded_yaml.load(text, loader) == yaml.safe_load(text)
    assert bounded_yaml.load_all("a: &x 1\n---\nb: &x 2\n---\n", loader) == [{"a": 1}, {"b": 2}, None]
    assert bounded_yaml.load("", loader) is None


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LAUGHS, "more than 200000 values"),
        ("a: &a [*a]", "holds itself"),
        ("[" * 200_000, "nested"),  # crashes the process in the C loader
        ("- " * 50_000, "nested"),
        ("{a: " * 1_000, "nested"),
        (f"a: {'x' * bounded_yaml.MAX_BYTES}", "larger than 16 MiB"),
    ],
    ids=["laughs", "itself", "lists", "items", "mappings", "large"],
)
def test_what_would_fill_the_memory_or_the_stack_is_refused(loader, text, sentence):
    with pytest.raises(TooMuchError, match=sentence):
        bounded_yaml.load(text, loader)
    with pytest.raises(TooMuchError, match=sentence):
        bounded_yaml.load_all(f"a: 1\n---\n{text}", loader)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "text",
    ["!!bool x", "!!timestamp x", "!!int x", "a: 2020-13-01", "x: 1" + "0" * 5_000, "!!float y", "*x", "\x00"],
    ids=range(8),
)
def test_a_value_that_is_none_is_an_error_of_yaml(loader, text):
    with pytest.raises(yaml.YAMLError):
        bounded_yaml.load(text, loader)


@pytest.mark.slow
def test_every_reader_of_files_says_it_in_a_sentence(tmp_path):
    workload = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\n"
    bombs = {"laughs": LAUGHS, "deep": "x: " + "[" * 100_000, "tag": "x: !!bool x\n"}
    for name, bomb in bombs.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(workload + bomb.replace("x:", "y:") if name == "laughs" else workload + bomb)
        with pytest.raises(SpecError):
            spec_file.load(str(path))
        path.write_text(f"kind: learner-workers\n{bomb}")
        with pytest.raises(SpecError):
            spec_file.load(str(path))
        path.write_text(bomb)
        with pytest.raises(SpecError):
            load_cluster(str(path))
        with pytest.raises(ConfigError):
            _read(path)


def test_placeholders_are_filled_once_however_many_there_are(tmp_path):
    """A file of many placeholders used to need a pass over all of them for each of its texts."""
    env = ", ".join(f"{{name: V{number}, value: '{{{{SEED}}}}-{number}'}}" for number in range(3_000))
    container = f"{{name: a, image: i, env: [{env}]}}"
    pod = f"{{restartPolicy: Never, containers: [{container}]}}"
    path = tmp_path / "job.yaml"
    path.write_text(
        f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {{template: {{spec: {pod}}}}}\n"
    )
    spec = spec_file.load(str(path), overrides=["SEED=7"]).spec
    assert '"7-2999"' in spec.sets[0].template


def test_half_a_character_is_refused_with_its_escape(tmp_path):
    with pytest.raises(yaml.YAMLError, match=r"holds \\ud800, which is half a character"):
        bounded_yaml.load('a: {"x\\ud800y": 1}')
    path = tmp_path / "spec.yaml"
    path.write_text('kind: job\nname: r\njob: {command: [x]}\ntrain: {environment_options: {"\\ud800": 1}}\n')
    with pytest.raises(SpecError, match="half a character"):
        spec_file.load(str(path))
