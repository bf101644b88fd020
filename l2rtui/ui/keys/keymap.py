"""Custom key bindings from ``[keys]`` of the settings: checked, and merged into the key table.

    [keys]
    "run.destroy" = "ctrl+x"
    "app.help" = "?,f1"

Names are the ids of the table (``docs/keys.md``). Every error is refused with a sentence: a key with another effect
than the user expects destroys runs by accident.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from textual.keys import KEY_NAME_REPLACEMENTS, Keys

from l2rtui.errors import ConfigError, nearest
from l2rtui.ui.keys.table import KEYS, Key, KeyContext, KeyTable

_NAMED: Final = frozenset(str(key.value) for key in Keys if not key.value.startswith("<"))
_MODIFIERS: Final = ("ctrl+", "shift+", "alt+", "super+")
_SHOWN: Final = {"left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "esc", "pageup": "page up"}
_ALWAYS: Final = frozenset({"ctrl+q", "ctrl+c"})
"""Quit the app from everywhere; these keys cannot be bound to anything else."""


def key_table(bindings: Iterable[tuple[str, str]]) -> KeyTable:
    """Return the key table with these bindings merged in.

    Args:
        bindings: Id of an entry, and its keys separated by commas.

    Raises:
        ConfigError: unknown entry or key, an entry that cannot be rebound, or a key used twice in one context.
    """
    table = {key.id: key for key in KEYS}
    bound: set[str] = set()
    for name, text in bindings:
        key = table.get(name)
        if key is None:
            hint = nearest(name, table) or "docs/keys.md lists the names."
            raise ConfigError(f"[keys]: there is nothing named {name!r}.", hint)
        # The action takes the digit itself as its argument, which another key would not give.
        if "%" in key.action:
            raise ConfigError(f"[keys]: {name} takes digits and cannot be bound to other keys.", "Leave it out.")
        names = [_name(name, part.strip()) for part in text.split(",")]
        table[name] = replace(key, keys=",".join(names), face=" ".join(map(face, names)))
        bound.add(name)
    for context in KeyContext:
        _refuse_clashes(bound, [key for key in table.values() if key.context in (context, KeyContext.APP)])
    return KeyTable(table.values())


def keymap(table: KeyTable) -> Mapping[str, str]:
    """Return Textual's keymap: the keys of rebound entries, by binding id."""
    usual = {key.id: key.keys for key in KEYS}
    return {key.id: key.keys for key in table.keys if key.keys != usual[key.id]}


def face(name: str) -> str:
    """Return a key in the notation of the screens."""
    if name in _SHOWN:
        return _SHOWN[name]
    for modifier in _MODIFIERS:
        if name.startswith(modifier):
            return f"{modifier}{face(name.removeprefix(modifier))}"
    return _CHARACTERS.get(name, name)


def _name(entry: str, text: str) -> str:
    """Return Textual's name of a key that the user wrote."""
    for modifier in _MODIFIERS:
        if text.startswith(modifier) and len(text) > len(modifier):
            bare = _name(entry, text.removeprefix(modifier))
            return f"{modifier}{bare}"
    if len(text) == 1 and text.isprintable() and text != " ":
        return _key_of(text)
    if text in _NAMED or text in _CHARACTERS:
        return text
    hint = nearest(text, sorted(_NAMED | _CHARACTERS.keys())) or "Such as x, X, ?, ctrl+x, f2, space or pageup."
    raise ConfigError(f"[keys]: {entry} is bound to {text!r}, and there is no such key.", hint)


def _refuse_clashes(bound: set[str], keys: Iterable[Key]) -> None:
    owners: dict[str, Key] = {}
    for key in keys:
        for name in key.keys.split(","):
            other = owners.setdefault(name, key)
            # Only a clash with a custom binding is the user's error.
            if other is not key and bound & {key.id, other.id}:
                where = key.context if key.context is not KeyContext.APP else other.context
                raise ConfigError(
                    f"[keys]: {face(name)} would be both {other.id} and {key.id} ({where}).",
                    f"Bind {other.id if key.id in bound else key.id} to another key as well, or choose another.",
                )
            if name in _ALWAYS and key.id != "app.quit_always":
                raise ConfigError(f"[keys]: {face(name)} always leaves the app.", "Choose another key.")


def _key_of(character: str) -> str:
    if character.isalnum():
        return character
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    # The rule of textual.keys._character_to_key, which is private.
    return KEY_NAME_REPLACEMENTS.get(name, name)


_CHARACTERS: Final = {_key_of(chr(number)): chr(number) for number in range(33, 127) if not chr(number).isalnum()}
"""Textual's names of punctuation, and the characters they write."""
