"""Check of a user's class, ``module:Class``, only from the text of its file: its code is not run."""

from __future__ import annotations

import ast
from typing import Final

NEEDED: Final = {
    "algorithm": ("update", "policy_weights", "tensors"),
    "network": ("forward",),
    "environment": ("start", "observe", "step"),
}
"""Required members of a class, by the setting that names it; ``runtime.rl.algos`` documents the same."""
_OPEN_BASES: Final = ("Algorithm", "Module")
"""Classes of others that leave exactly these methods abstract."""


def class_problem(setting: str, name: str, file: str, text: str) -> str:
    """Return the problem of the class ``module:Class`` in a file, as a sentence; empty if none is found.

    Args:
        setting: ``algorithm``, ``network`` or ``environment``. name: its value. Names of other modules, and
            built-in methods, are not checked.
        file: Name of the file that is sent with the run. text: its contents; empty if it is fetched later.
    """
    module, colon, class_name = name.partition(":")
    if not colon or not text or f"{module}.py" != file:
        return ""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"{file} is no Python{f': line {line}' if line else ''}"
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if class_name not in classes:
        return f"{file} has no class {class_name}"
    members = _members(classes[class_name], classes)
    missing = [needed for needed in NEEDED[setting] if members is not None and needed not in members]
    return f"{class_name} of {file} has no {' and no '.join(missing)}" if missing else ""


def _members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str] | None:
    """Return the names that a class of the file defines or inherits; None if a base may define more."""
    names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    names |= {
        target.id
        for part in node.body
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    for base in node.bases:
        base_name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
        if base_name in _OPEN_BASES:
            continue
        inherited = _members(classes[base_name], classes) if classes.get(base_name, node) is not node else None
        if inherited is None:
            return None
        names |= inherited
    return names
