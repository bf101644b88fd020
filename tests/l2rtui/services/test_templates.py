"""Templates: the user's specs, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from l2rtui.cli.main import main
from l2rtui.errors import NotFoundError, RefusedError, SpecError, UsageError
from l2rtui.services.spec import templates

SPEC = Path(__file__).parents[3] / "manifests" / "cartpole-ppo.yaml"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "l2rtui" / "templates"


def test_a_saved_template_is_the_same_spec_under_a_name(folder):
    path = templates.save("night", str(SPEC))
    assert path == folder / "night.yaml"
    assert path.read_bytes() == SPEC.read_bytes()
    (only,) = templates.templates()
    assert (only.name, only.path) == ("night", path)
    assert only.about == SPEC.read_text().partition("\n")[0].lstrip("# ")
    assert templates.template_path("night") == templates.template_named("night") == path


def test_a_name_that_is_taken_stays_without_replace(folder):
    templates.save("night", str(SPEC))
    other = SPEC.with_name("racing-sac.yaml")
    with pytest.raises(RefusedError, match="already"):
        templates.save("night", str(other))
    assert (folder / "night.yaml").read_bytes() == SPEC.read_bytes()
    templates.save("night", str(other), replaces=True)
    assert (folder / "night.yaml").read_bytes() == other.read_bytes()


def test_another_ending_is_no_second_template_of_the_name(folder):
    folder.mkdir(parents=True)
    (folder / "night.yml").write_bytes(SPEC.read_bytes())
    templates.save("night", str(SPEC), replaces=True)
    assert [path.name for path in folder.iterdir()] == ["night.yaml"]


@pytest.mark.parametrize("name", ["Night", "../x", "", "a" * 80])
def test_a_name_is_one_that_a_run_could_have(folder, name):
    with pytest.raises(UsageError):
        templates.save(name, str(SPEC))
    assert not folder.exists()


def test_a_spec_with_a_mistake_becomes_no_template(folder, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("kind: learner-workers\nworkerz: []\n")
    with pytest.raises(SpecError):
        templates.save("night", str(wrong))
    assert templates.templates() == ()


def test_a_spec_that_names_a_file_beside_itself_becomes_no_template(folder):
    with pytest.raises(SpecError, match="names files or folders next to it"):
        templates.save("night", str(SPEC.with_name("ps-tensorflow.yaml")))
    assert templates.templates() == ()
    assert not list(folder.iterdir())


def test_a_name_that_is_not_there_is_answered_by_those_that_are(folder):
    with pytest.raises(NotFoundError, match="template save NAME"):
        templates.template_path("night")
    templates.save("night", str(SPEC))
    with pytest.raises(NotFoundError, match="Did you mean night"):
        templates.template_path("nigt")
    assert templates.template_named("night.yaml") is None  # a path, whether it exists or not
    assert templates.template_named("./night") is None


def test_commands_make_list_show_and_delete_one(folder, capsys):
    assert main(["template"]) == 0
    assert "No templates." in capsys.readouterr().err
    assert main(["template", "save", "night", "-f", str(SPEC)]) == 0
    assert "l2rtui launch -t night" in capsys.readouterr().err
    assert main(["template", "ls", "-o", "name"]) == 0
    assert capsys.readouterr().out == "night\n"
    assert main(["template", "show", "night"]) == 0
    assert capsys.readouterr().out == SPEC.read_text()
    assert main(["plan", "-t", "night", "--backend", "demo", "-o", "json"]) == 0
    assert '"cartpole-ppo' in capsys.readouterr().out
    assert main(["template", "delete", "night"]) == 0
    assert main(["template", "show", "night"]) == 1
    assert "There is no template 'night'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "-t", "x"], "There is no template 'x'."),
        (["plan", "-t", "x", "-f", "y.yaml"], "-f and -t both name the spec."),
        (["plan"], "plan needs a spec. Write `l2rtui plan -f SPEC`, -t NAME for a template."),
        (["template", "show"], "template show needs a name."),
        (["template", "save", "x"], "template save needs a spec file."),
    ],
)
def test_each_mistake_is_a_sentence(folder, capsys, words, sentence):
    assert main([*words, "--backend", "demo"]) in (1, 2)
    assert sentence in capsys.readouterr().err


def test_a_shell_completes_names_of_templates(folder, capsys):
    templates.save("night", str(SPEC))
    assert main(["__complete", "--", "launch", "-t", ""]) == 0
    assert capsys.readouterr().out.splitlines() == ["night", *templates.examples()]
