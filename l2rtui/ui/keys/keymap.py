"""The keys that a person has bound otherwise, in ``[keys]`` of the settings: checked, and worked into the table.

    [keys]
    "run.destroy" = "ctrl+x"
    "view.help" = "?,f1"

Names are those of the table's ids (``docs/keys.md``). Each mistake is a sentence, and none is passed
over in silence: a key that does another thing than its owner thinks is how runs get lost.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from textual.keys import KEY_NAME_REPLACEMENTS, Keys

from l2rtui.config import nearest
from l2rtui.errors import ConfigError
from l2rtui.ui.keys import KEYS, Key, KeyTable, Place

_NAMED: Final = frozenset(str(key.value) for key in Keys if not key.value.startswith("<"))
_MODIFIERS: Final = ("ctrl+", "shift+", "alt+", "super+")
_SHOWN: Final = {"left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "esc", "pageup": "page up"}
_ALWAYS: Final = frozenset({"ctrl+q", "ctrl+c"})
"""Leave the app from everywhere; nothing else may be put on them."""


def key_table(wanted: Iterable[tuple[str, str]]) -> KeyTable:
    """The table with these bindings in it.

    Args:
        wanted: Id of an entry, and its keys with commas between.

    Raises:
        ConfigError: there is no such entry or key, it cannot be bound anew, or two in one place share a key.
    """
    table = {key.id: key for key in KEYS}
    bound: set[str] = set()
    for name, text in wanted:
        key = table.get(name)
        if key is None:
            raise ConfigError(
                f"[keys]: there is nothing named {name!r}.", nearest(name, table) or "docs/keys.md lists the names."
            )
        if "%" in key.action:
            raise ConfigError(f"[keys]: {name} takes digits and cannot be bound to other keys.", "Leave it out.")
        names = [_name(name, part.strip()) for part in text.split(",")]
        table[name] = replace(key, keys=",".join(names), face=" ".join(map(face, names)))
        bound.add(name)
    for place in Place:
        _refuse_clashes(bound, [key for key in table.values() if key.place in (place, Place.APP)])
    return KeyTable(table.values())


def keymap(table: KeyTable) -> Mapping[str, str]:
    """What Textual wants to be told: the keys of entries that are bound otherwise, by id."""
    usual = {key.id: key.keys for key in KEYS}
    return {key.id: key.keys for key in table.keys if key.keys != usual[key.id]}


def face(name: str) -> str:
    """How a key is written on screens."""
    if name in _SHOWN:
        return _SHOWN[name]
    for modifier in _MODIFIERS:
        if name.startswith(modifier):
            return f"{modifier}{face(name.removeprefix(modifier))}"
    return _CHARACTERS.get(name, name)


def _name(entry: str, text: str) -> str:
    """Textual's name of a key that a person wrote."""
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
    taken: dict[str, Key] = {}
    for key in keys:
        for name in key.keys.split(","):
            other = taken.setdefault(name, key)
            if other is not key and bound & {key.id, other.id}:
                where = key.place if key.place is not Place.APP else other.place
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
    return KEY_NAME_REPLACEMENTS.get(name, name)


_CHARACTERS: Final = {_key_of(chr(number)): chr(number) for number in range(33, 127) if not chr(number).isalnum()}
"""Textual's names of punctuation, and what they write."""
