"""Own code named by a spec: which files of its folder are sent with the run, and the archive of them.

Rules of ``.gitignore`` and ``.l2rignore`` (gitignore(5)) leave files out. The archive is deterministic: the same
files give the same bytes, whatever their times and owners.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from msgspec import Struct

from l2rtui.backends.common import workdirs
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import counted, format_bytes
from l2rtui.domain.workload import Workdir
from l2rtui.errors import SpecError

# --- ignore rules ----------------------------------------------------------------------------------------------
RULE_FILES: Final = (".gitignore", ".l2rignore")
"""Names of the files with rules; a rule of a later file wins."""
_MAX_RULE_BYTES: Final = 262_144
_PARTS: Final = re.compile(
    r"\\(?P<literal>.)|\[(?P<group>[!^]?\]?[^\]]*)\]|(?P<star>\*+|\?)|(?P<other>.)", re.DOTALL
)


class Rule(Struct, frozen=True):
    """One line of an ignore file.

    Attributes:
        pattern: Matches paths relative to the folder of the file.
        base: That folder below the packed one, or the packed one below that folder (``is_above``); ends with ``/``
            unless they are the same.
        is_negated: The line begins with ``!``: matching paths are sent. only_folders: it ends with ``/``.
    """

    pattern: re.Pattern[str]
    base: str = ""
    is_above: bool = False
    is_negated: bool = False
    only_folders: bool = False

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the rule is about a path, which is relative to the packed folder."""
        if self.only_folders and not is_folder:
            return False
        if self.is_above:
            return self.pattern.fullmatch(self.base + path) is not None
        return path.startswith(self.base) and self.pattern.fullmatch(path[len(self.base) :]) is not None


def is_ignored(rules: Iterable[Rule], path: str, *, is_folder: bool) -> bool:
    """Return the verdict of the last rule that matches; without one a path is sent."""
    matching = [rule for rule in rules if rule.matches(path, is_folder=is_folder)]
    return bool(matching) and not matching[-1].is_negated


def rules_in(folder: Path, base: str = "", *, is_above: bool = False) -> tuple[Rule, ...]:
    """Return the rules of the ignore files in a folder; base and is_above as in ``Rule``. Raises OSError."""
    names = RULE_FILES[:1] if is_above else RULE_FILES
    lines = (line for name in names for line in _lines(folder / name))
    return tuple(rule for line in lines if (rule := _rule(line, base, is_above=is_above)) is not None)


def rules_above(folder: Path) -> tuple[Rule, ...]:
    """Return the rules that its git repository has above a folder, outermost first. Raises OSError."""
    between: list[Path] = []
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            bases = ((above, f"{folder.relative_to(above).as_posix()}/") for above in reversed(between))
            return tuple(rule for above, base in bases for rule in rules_in(above, base, is_above=True))
        between.append(parent.parent)
    return ()


def _lines(path: Path) -> Iterator[str]:
    if path.is_file():
        with path.open("rb") as file:
            yield from file.read(_MAX_RULE_BYTES).decode("utf-8", "surrogateescape").splitlines()


def _rule(line: str, base: str, *, is_above: bool) -> Rule | None:
    """Return the rule of a line; None for an empty line and a comment."""
    text = re.sub(r"(?<!\\) +$", "", line)
    if not text or text.startswith("#"):
        return None
    is_negated = text.startswith("!")
    text = text[is_negated:]
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    # A pattern with a slash is relative to the folder of its file; one without is about names at any depth.
    anchor = "" if "/" in text else r"(?:.*/)?"
    try:
        pattern = re.compile(anchor + _expression(text.removeprefix("/")), re.DOTALL)
    except re.error:  # a range like [z-a], which git does not match either
        return None
    return Rule(pattern, base, is_above, is_negated, only_folders)


def _expression(glob: str) -> str:
    """Return the regular expression of a pattern of gitignore(5)."""
    glob = re.sub(r"(?<!\\)\*\*/(?:\*\*/)+", "**/", glob)
    if glob == "**":
        return ".+"
    start, glob = (r"(?:.*/)?", glob[3:]) if glob.startswith("**/") else ("", glob)
    end, glob = (r"/.+", glob[:-3]) if glob.endswith("/**") else ("", glob)
    return start + r"/(?:.*/)?".join(map(_of_part, glob.split("/**/"))) + end


def _of_part(glob: str) -> str:
    parts = []
    for part in _PARTS.finditer(glob):
        if part["group"] is not None:
            negation = "^" if part["group"][:1] in ("!", "^") else ""
            members = part["group"][len(negation) :].replace("\\", "\\\\").replace("[", r"\[")
            members = f"\\{members}" if members.startswith("]") else members
            parts.append(f"(?!/)[{negation}{members}]")
        elif part["star"] is not None:
            parts.append("[^/]" if part["star"] == "?" else "[^/]*")
        else:
            parts.append(re.escape(part["literal"] or part["other"]))
    return "".join(parts)


# --- files and their archive -----------------------------------------------------------------------------------
MAX_BYTES: Final = 64 << 20
"""Limit of the files together: what is larger is data, which belongs in a volume."""
MAX_FILES: Final = 10_000
_MAX_SEEN: Final = 100_000
"""Limit of files and folders that are looked at, so that a home folder is refused within a second."""
_NAMED: Final = 6
"""Names in a finding; the others are counted."""
_SECRET_NAMES: Final = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kubeconfig"),
    *("id_rsa", "id_dsa", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".pypirc", ".npmrc", ".htpasswd"),
    *("credentials", "credentials.json", "credentials.ini", "kubeconfig", ".git-credentials", ".aws", ".ssh"),
    *(".kube", ".gnupg", ".docker", "secrets.yaml", "secrets.yml", "secrets.json", "secrets.toml"),
    *("service-account*.json", "service_account*.json", ".secrets", ".vault-token"),
)
_NO_SECRETS: Final = ("*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist")
_KEY_MARK: Final = b"PRIVATE KEY-----"
_TIME: Final = 315_532_800
"""Time of every file in the archive, 1980-01-01: zip archives that setup commands make know no earlier one."""
_IGNORE_HINT: Final = "Leave it out by a line in .l2rignore"


@dataclass(slots=True)
class _Scan:
    """Files of a folder that are sent, by their names in the archive, and names of those that are not."""

    root: Path
    allows_outside: bool
    files: dict[str, Path] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    entries: int = 0

    def walk(self, folder: Path, base: str, rules: tuple[Rule, ...], above: tuple[Path, ...]) -> None:
        """Look at the entries of a folder. Raises _WorkdirError and OSError.

        Args:
            base: The folder in the archive, with ``/`` at its end. above: resolved folders around it.
        """
        rules = (*rules, *rules_in(folder, base))
        with os.scandir(folder) as children:
            names = sorted(entry.name for entry in children)
        for name in names:
            self.entries += 1
            if self.entries > _MAX_SEEN:
                sentence = f"it holds more than {_MAX_SEEN:,} files and folders"
                raise _WorkdirError(
                    sentence, "Name the folder of the code alone, or leave folders out by .l2rignore."
                )
            if name not in workdirs.CACHES and not name.endswith(".pyc"):
                self._look_at(folder / name, base + name, rules, above)

    def _look_at(self, path: Path, name: str, rules: tuple[Rule, ...], above: tuple[Path, ...]) -> None:
        is_folder = path.is_dir()
        display_name = f"{name}/" if is_folder else name
        if is_ignored(rules, name, is_folder=is_folder):
            self.ignored.append(display_name)
            return
        if _is_secret(path.name):
            self.secrets.append(display_name)
            return
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            self.unusable.append(f"{name} (a broken link)")
            return
        if not self.allows_outside and not real.is_relative_to(self.root):
            sentence = f"{_shown(name)} leads to {real}, which is outside of {self.root}, the spec's folder"
            raise _WorkdirError(sentence, f"{_IGNORE_HINT}, or add --allow-outside if you trust this spec.")
        if is_folder:
            if real in above:
                self.unusable.append(f"{name} (a link to a folder around it)")
            else:
                self.walk(path, f"{name}/", rules, (*above, real))
        elif path.is_file():
            self.files[name] = path
            self.sizes[name] = path.stat().st_size
        else:
            self.unusable.append(f"{name} (neither a file nor a folder)")


class _WorkdirError(Exception):
    """Reason why a folder cannot be sent, and the next step."""


def pack(
    path: str, spec_folder: Path, where: str, *, allows_outside: bool = False
) -> tuple[Workdir, tuple[Finding, ...]]:
    """Pack and store the folder that a spec names; return it, and findings on what is sent and what is left out.

    Args:
        spec_folder: Folder of the spec file, to which the path is relative.
        where: File and line of the field, for messages.
        allows_outside: Links may lead out of the folder of the spec.

    Raises:
        SpecError: It is no folder, is too large, holds a link that leads out or a file that cannot be read.
    """
    folder = spec_folder / path
    try:
        scan = _scan(folder, spec_folder.resolve(), allows_outside=allows_outside)
        tar = _archive(scan)
    except _WorkdirError as error:
        sentence, hint = error.args
        raise SpecError(f"{where}: workdir: {sentence}.", hint) from None
    except OSError as error:
        name = _shown(str(error.filename or folder))
        sentence = f"{where}: workdir: {name} cannot be read: {error.strerror or error}."
        raise SpecError(sentence, f"{_IGNORE_HINT}, or correct its rights.") from error
    try:
        sha256, packed_bytes = workdirs.store(tar)
    except OSError as error:
        place = _shown(str(workdirs.archive_folder()))
        sentence = f"{where}: workdir: its archive cannot be written to {place}: {error.strerror or error}."
        raise SpecError(
            sentence, "Set XDG_STATE_HOME to a folder that you can write to, with free space."
        ) from error
    workdir = Workdir(path, sha256, len(scan.files), sum(scan.sizes.values()), packed_bytes)
    return workdir, tuple(_findings(workdir, scan))


def _scan(folder: Path, root: Path, *, allows_outside: bool) -> _Scan:
    """Return the files of a folder. Raises _WorkdirError and OSError."""
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise _WorkdirError(f"{folder} {kind}", "Write a path relative to the spec file, such as `workdir: .`.")
    scan = _Scan(root, allows_outside)
    scan.walk(folder, "", rules_above(folder.resolve()), (folder.resolve(),))
    _refuse_large(scan)
    if not scan.files:
        raise _WorkdirError(f"{folder} holds no file to send", "See .gitignore and .l2rignore there.")
    return scan


def _is_secret(name: str) -> bool:
    name = name.lower()
    is_like = any(fnmatch(name, pattern) for pattern in _SECRET_NAMES)
    return is_like and not any(fnmatch(name, pattern) for pattern in _NO_SECRETS)


def _refuse_large(scan: _Scan) -> None:
    total = sum(scan.sizes.values())
    if total <= MAX_BYTES and len(scan.files) <= MAX_FILES:
        return
    if total > MAX_BYTES:
        largest = sorted(scan.sizes.items(), key=lambda item: -item[1])[:3]
        names = ", ".join(f"{_shown(name)} ({format_bytes(size)}B)" for name, size in largest)
    else:
        folders = Counter(name.split("/")[0] if "/" in name else "" for name in scan.sizes).most_common(3)
        names = ", ".join(f"{_shown(name) if name else '.'} ({counted(many, 'file')})" for name, many in folders)
    sentence = (
        f"its {counted(len(scan.files), 'file')} of {format_bytes(total)}B are more than the "
        f"{MAX_FILES:,} files of {format_bytes(MAX_BYTES)}B that go with a run; the largest: {names}"
    )
    raise _WorkdirError(
        sentence, "Leave data out by .l2rignore, and put it into a volume: docs/guides/own-code.md."
    )


def _archive(scan: _Scan) -> bytes:
    """Return the tar archive; files that turn out to be private keys are clashing out of the scan."""
    packed = io.BytesIO()
    folders: set[str] = set()
    # GNU's format: every tar reads its long names, and names that are no text.
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in sorted(scan.files.items()):
            content = path.read_bytes()
            if _KEY_MARK in content[:4096]:
                scan.secrets.append(name)
                continue
            for parent in reversed(Path(name).parents[:-1]):
                if (folder := parent.as_posix()) not in folders:
                    folders.add(folder)
                    _add(tar, folder, None, 0o755)
            _add(tar, name, content, 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
            scan.sizes[name] = len(content)
    for name in scan.secrets:
        scan.files.pop(name, None)
        scan.sizes.pop(name, None)
    return packed.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes | None, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    member.mode, member.mtime, member.size = mode, _TIME, len(content or b"")
    tar.addfile(member, io.BytesIO(content or b""))


def _findings(workdir: Workdir, scan: _Scan) -> Iterator[Finding]:
    yield Finding(
        Severity.OK, workdirs.SUBJECT, f"{workdir.path}: {workdir.size} go with the run: {_list(scan.files)}"
    )
    if scan.ignored:
        sentence = f"left out by .gitignore and .l2rignore: {_list(scan.ignored)}"
        yield Finding(Severity.OK, workdirs.SUBJECT, sentence)
    if scan.secrets:
        sentence = f"left out, since they look like secrets: {_list(scan.secrets)}"
        hint = "`l2rtui secret create NAME --prompt KEY` keeps one, and `secrets: [NAME]` gives it to the run."
        yield Finding(Severity.WARNING, workdirs.SUBJECT, sentence, hint)
    if scan.unusable:
        yield Finding(Severity.WARNING, workdirs.SUBJECT, f"left out: {_list(scan.unusable)}")
    modules = {name.partition("/")[0].removesuffix(".py") for name in scan.files if name.endswith(".py")}
    if clashing := sorted(modules & {"runtime", "l2rtui"}):
        sentence = f"its module {clashing[0]} would take the place of l2rtui's own in the processes of the run"
        yield Finding(
            Severity.REFUSAL, workdirs.SUBJECT, sentence, "Give it another name, or move it into a package."
        )
    if clashing := sorted(modules & sys.stdlib_module_names):
        sentence = f"Python imports these files in place of its own modules: {_list(clashing)}"
        yield Finding(Severity.WARNING, workdirs.SUBJECT, sentence, "Give them other names.")


def _list(names: Sequence[str] | dict[str, Path]) -> str:
    names = [_shown(name) for name in names]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _shown(name: str) -> str:
    """Return a name of a file for a message; its line feeds and bytes that are no text are escaped."""
    return name if name.isprintable() else ascii(name)
