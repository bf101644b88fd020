"""Own code of a spec: which files are packed, what is left out and why, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from l2rtui.backends.common import workdirs
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.errors import BackendError, SpecError
from l2rtui.services.spec import encode, spec_file, workdir
from l2rtui.services.spec.workdir import is_ignored, rules_in

SPEC = """\
kind: job
name: mine
workdir: .
setup: [[pip, install, -r, requirements.txt]]
job: {command: [python, main.py]}
"""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "project"
    path.mkdir()
    write(path, {"mine.yaml": SPEC, "main.py": "import helper\n", "lib/helper.py": "X = 1\n"})
    return path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def load(folder: Path, *overrides: str, **options: bool):
    return spec_file.load(str(folder / "mine.yaml"), overrides, **options)


def packed(folder: Path, *overrides: str, **options: bool) -> dict[str, bytes | None]:
    code = load(folder, *overrides, **options).spec.workdir
    return {name: content for name, _, content in workdirs.members(code) if content is not None}


def notes(folder: Path, severity: Severity) -> str:
    found: tuple[Finding, ...] = load(folder).notes
    return " | ".join(f"{note.sentence} {note.hint}" for note in found if note.severity is severity)


def test_the_files_of_the_folder_are_packed_and_named(folder):
    spec = load(folder).spec
    code = spec.workdir
    assert packed(folder) == {
        "lib/helper.py": b"X = 1\n",
        "main.py": b"import helper\n",
        "mine.yaml": SPEC.encode(),
    }
    assert (code.files, code.num_bytes) == (3, 20 + len(SPEC))
    assert code.setup == (("pip", "install", "-r", "requirements.txt"),)
    assert f"3 files, {code.num_bytes}B (" in notes(folder, Severity.OK)
    assert "lib/helper.py, main.py, mine.yaml" in notes(folder, Severity.OK)
    document = encode.to_document(spec)
    assert (document["workdir"], document["setup"]) == (".", [["pip", "install", "-r", "requirements.txt"]])


def test_the_same_files_have_the_same_hash_and_an_edit_another(folder):
    before = load(folder).spec.workdir
    os.utime(folder / "main.py", (1, 1))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "helper.cpython-311.pyc").write_bytes(b"x")
    assert load(folder).spec.workdir == before
    (folder / "lib" / "helper.py").write_text("X = 2\n")
    assert load(folder).spec.workdir.sha256 != before.sha256
    (folder / "lib" / "helper.py").write_text("X = 1\n")
    (folder / "main.py").chmod(0o755)
    assert load(folder).spec.workdir.sha256 != before.sha256


def test_ignored_files_stay_here_and_are_named(folder):
    write(
        folder,
        {".gitignore": "*.ckpt\n/out/\n!keep.ckpt\n", ".l2rignore": "notes.md\n", "a.ckpt": "", "keep.ckpt": ""},
    )
    write(folder, {"out/x.py": "", "lib/out/y.py": "", "notes.md": "", "lib/.gitignore": "*.tmp", "lib/z.tmp": ""})
    assert packed(folder).keys() == {
        *(".gitignore", ".l2rignore", "keep.ckpt", "lib/.gitignore", "lib/helper.py", "lib/out/y.py"),
        *("main.py", "mine.yaml"),
    }
    assert "left out by .gitignore and .l2rignore: a.ckpt, lib/z.tmp, notes.md, out/" in notes(folder, Severity.OK)


def test_rules_of_the_repository_above_count(folder):
    (folder.parent / ".git").mkdir()
    write(folder.parent, {".gitignore": "*.log\nproject/data\n/main.py\n"})
    write(folder, {"a.log": "", "data/b": "", "lib/data/c": ""})
    assert packed(folder).keys() == {"lib/data/c", "lib/helper.py", "main.py", "mine.yaml"}


@pytest.mark.parametrize(
    ("rules", "ignored", "kept"),
    [
        ("*.py", "a.py b/c.py", "a.pyx"),
        ("/a", "a", "b/a"),
        ("a/b", "a/b", "c/a/b"),
        ("**/a", "a b/a b/c/a", "ab"),
        ("a/**", "a/b a/b/c", "a b/a/c"),
        ("a/**/b", "a/b a/x/b a/x/y/b", "a/xb"),
        ("**", "a b/c", ""),
        ("a?c", "abc", "ac a/c"),
        ("[ab].py", "a.py b.py", "c.py"),
        ("[!ab].py", "c.py", "a.py"),
        ("[a-c]x", "bx", "dx"),
        ("[z-a]x", "", "zx"),
        (r"\#a", "#a", "a"),
        (r"\!a", "!a", "a"),
        ("a  ", "a", "b"),
        ("# b\n\na", "a", "b"),
        ("*\n!*.py", "a.txt", "a.py"),
        ("a.b+", "a.b+", "aXb+ a.bb"),
    ],
)
def test_a_pattern_means_what_it_means_to_git(tmp_path, rules, ignored, kept):
    (tmp_path / ".gitignore").write_text(rules)
    read = rules_in(tmp_path)
    for name in ignored.split():
        assert is_ignored(read, name, is_folder=False), name
    for name in kept.split():
        assert not is_ignored(read, name, is_folder=False), name


@pytest.mark.process
def test_patterns_agree_with_git(tmp_path):
    import subprocess

    patterns = (
        "*.a",
        "/x",
        "x/y",
        "**/z",
        "x/**",
        "x/**/z",
        "!k.a",
        "q/",
        "[xy]?",
        r"\#h",
        "b\\ b ",
        "*/z",
        "/*/k.a",
    )
    names = (
        "k.a",
        "x/k.a",
        "x/y",
        "z",
        "x/z",
        "x/q/z",
        "q",
        "r/q/t",
        "xy",
        "r/xy",
        "#h",
        "b b",
        "r/z",
        "r/s/z",
        "u",
    )
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for number in range(1 << 6):
        chosen = [pattern for index, pattern in enumerate(patterns) if number >> (index % 6) & 1]
        (tmp_path / ".gitignore").write_text("\n".join(chosen))
        asked = ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "--stdin"]
        git = subprocess.run(asked, input="\n".join(names), capture_output=True, text=True, check=False).stdout
        rules = rules_in(tmp_path)
        for name in names:
            parts = name.split("/")
            above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
            ours = any(is_ignored(rules, folder, is_folder=True) for folder in above)
            ours = ours or is_ignored(rules, name, is_folder=False)
            assert ours == (name in git.splitlines()), (chosen, name)


def test_what_looks_like_a_secret_is_left_out_and_named(folder):
    write(
        folder, {".env": "TOKEN=1", "lib/id_rsa": "", "server.key": "", ".aws/credentials": "", ".env.example": ""}
    )
    write(folder, {"deploy.txt": "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n", "id_rsa.pub": "ssh-rsa A"})
    assert packed(folder).keys() == {".env.example", "id_rsa.pub", "lib/helper.py", "main.py", "mine.yaml"}
    warnings = notes(folder, Severity.WARNING)
    assert "look like secrets: .aws/, .env, lib/id_rsa, server.key, deploy.txt" in warnings
    assert "l2rtui secret create" in warnings


def test_a_link_inside_is_a_copy_and_one_that_leads_out_is_refused(folder):
    (folder / "alias.py").symlink_to("lib/helper.py")
    (folder / "again").symlink_to("lib")
    (folder / "lib" / "loop").symlink_to("..")
    (folder / "broken").symlink_to("nowhere")
    files = packed(folder)
    assert files["alias.py"] == files["again/helper.py"] == b"X = 1\n"
    assert "broken (a broken link)" in notes(folder, Severity.WARNING)
    assert "lib/loop (a link to a folder around it)" in notes(folder, Severity.WARNING)
    outside = folder.parent / "outside.py"
    outside.write_text("Y = 1\n")
    (folder / "out.py").symlink_to(outside)
    with pytest.raises(SpecError, match=r"mine.yaml:3: workdir: out.py leads to .*outside.py, which is outside of"):
        load(folder)
    assert packed(folder, allows_outside=True)["out.py"] == b"Y = 1\n"
    (folder / ".l2rignore").write_text("out.py\n")
    assert "out.py" not in packed(folder)


@pytest.mark.parametrize("value", ["..", "../other", "/etc", "{path: .., volume: v}"])
def test_a_folder_outside_of_the_specs_is_refused(folder, value):
    with pytest.raises(SpecError, match=r"is outside of .*project, the spec's folder"):
        load(folder, f"workdir={value}")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("workdir=nowhere",), "nowhere does not exist"),
        (("workdir=main.py",), "main.py is not a folder"),
        (("workdir=empty",), "empty holds no file to send"),
        (("workdir=null",), "setup runs in workdir, and there is none"),
        (("workdir={volume: v}",), "workdir.path is missing"),
        (("setup=[pip install x]",), "a list"),
        (("setup=[[]]",), "setup[0]"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_a_sentence(folder, overrides, sentence):
    (folder / "empty").mkdir()
    with pytest.raises(SpecError) as refused:
        load(folder, *(override.replace("workdir=null", "workdir=''") for override in overrides))
    assert sentence in str(refused.value)


def test_too_many_files_name_the_folders_that_have_most(folder, monkeypatch):
    monkeypatch.setattr(workdir, "MAX_FILES", 5)
    write(folder, {f"data/{number % 2}/{number}.txt": "x" for number in range(4)})
    with pytest.raises(SpecError) as refused:
        load(folder)
    assert "its 7 files" in str(refused.value)
    assert "the largest: data (4 files), . (2 files), lib (1 file)." in str(refused.value)


def test_too_large_a_folder_names_its_largest_files(folder, monkeypatch):
    monkeypatch.setattr(workdir, "MAX_BYTES", 1 << 20)
    (folder / "data.bin").write_bytes(bytes(1_100_000))
    with pytest.raises(SpecError) as refused:
        load(folder)
    assert "its 4 files of 1.05MiB are more than the 10,000 files of 1MiB" in str(refused.value)
    assert "the largest: data.bin (1.05MiB)" in str(refused.value)
    assert ".l2rignore" in str(refused.value)
    (folder / ".l2rignore").write_text("*.bin\n")
    assert "data.bin" not in packed(folder)


def test_a_home_folder_is_refused_before_all_of_it_is_looked_at(folder, monkeypatch):
    monkeypatch.setattr(workdir, "_MAX_SEEN", 3)
    with pytest.raises(SpecError, match="it holds more than 3 files and folders"):
        load(folder)


def test_a_file_that_cannot_be_read_is_named(folder, monkeypatch):
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "main.py":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(SpecError, match=r"workdir: .*main.py cannot be read: Permission denied"):
        load(folder)


def test_a_state_folder_that_cannot_be_written_is_not_blamed_on_the_files(folder, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc")
    with pytest.raises(
        SpecError, match=r"workdir: its archive cannot be written to /proc/l2rtui/workdirs: .*STATE_HO"
    ):
        load(folder)


def test_odd_names_travel_and_are_shown_escaped(folder):
    odd = ("a b.py", "new\nline.txt", "größe.txt", "back\\slash", "-rf", "q'uote\".txt", "x" * 200)
    for name in odd:
        (folder / name).write_text(name)
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.txt")).write_bytes(b"bytes")
    os.mkfifo(folder / "pipe")
    files = packed(folder)
    assert {name: files[name] for name in odd} == {name: name.encode() for name in odd}
    assert files[os.fsdecode(b"bad\xff.txt")] == b"bytes"
    ok = notes(folder, Severity.OK)
    assert ok.isprintable()
    assert "'bad\\udcff.txt'" in ok
    assert "pipe (neither a file nor a folder)" in notes(folder, Severity.WARNING)


def test_modules_in_the_place_of_others_are_named(folder):
    write(folder, {"random.py": ""})
    assert "in place of its own modules: random" in notes(folder, Severity.WARNING)
    write(folder, {"runtime/x.py": ""})
    assert "its module runtime would take the place of l2rtui's own" in notes(folder, Severity.REFUSAL)


def test_trials_of_a_sweep_share_one_archive(folder, monkeypatch):
    write(folder, {"mine.yaml": SPEC + "sweep: {env.LR: [1, 2, 3]}\n"})
    packs = []
    real = workdir.pack
    monkeypatch.setattr(workdir, "pack", lambda *args, **options: packs.append(1) or real(*args, **options))
    request = load(folder)
    assert len({run.workdir for run in request.runs()}) == 1 == len(packs)
    assert len(request.runs()) == 3


def test_an_archive_that_is_gone_or_damaged_is_refused(folder):
    spec = load(folder).spec
    assert list(workdirs.findings_of([spec])) == []
    workdirs.path_of(spec.workdir).write_bytes(b"x")
    (finding,) = workdirs.findings_of([spec])
    assert finding.severity is Severity.REFUSAL
    assert "was damaged" in finding.sentence
    with pytest.raises(BackendError, match="is not stored on this machine"):
        workdirs.packed(spec.workdir)
    assert load(folder).spec.workdir == spec.workdir  # the spec file stores it again
    assert list(workdirs.findings_of([spec])) == []
