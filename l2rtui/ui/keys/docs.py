"""Generator of ``docs/keys.md`` from the tables: ``python -m l2rtui.ui.keys.docs > docs/keys.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from l2rtui.ui.keys.palette import COMMANDS
from l2rtui.ui.keys.table import KEYS, KeyContext, KeyTable

_HEAD: Final = """\
# Keys (keyboard shortcuts) and commands

`?` shows these keys in the app, with your own bindings. The mouse works everywhere as well, and pasted text
never fires a key.

Keys marked ✎ change something outside the screen. They ask first. `--readonly` and missing rights turn them
off: the reason is in `?`, in the menu (`m`) and under the mouse.

`python -m l2rtui.ui.keys.docs` generates this page from the table that the app reads. A test compares the two.
"""
_BINDING: Final = """\
## Other keys

`[keys]` in the settings file (`~/.config/l2rtui/config.toml`) changes a key, by the name in the last column:

```toml
[keys]
"run.destroy" = "ctrl+x"
"app.help" = "?,f1"       # two keys for one thing
```

A key is a character (`x`, `X`, `?`), a name (`space`, `enter`, `escape`, `tab`, `up`, `pageup`, `home`, `f2`,
`question_mark`), or one of them after `ctrl+`, `shift+` or `alt+`. Bar, help, menu and palette show your keys.
Before the app opens, an error reports an unknown name, an unknown key, and a key with two effects in one place.
`ctrl+q` and `ctrl+c` always quit.

## Settings by context

`[context.NAME]` contains settings for one context of the kubeconfig. Use `local` and `demo` for those backends.

```toml
theme = "l2r-dark"

[context.production]
protected = true          # you type "production" for every change, and the app has a special frame
namespaces = ["rl"]

[filters]
broken = "pods status~Fail"   # :filter broken
```

`:reload` reads the file again. Theme, keys, filters, limits, `notify`, `grace_seconds`, `readonly` and
`protected` take effect immediately, the others at the next start. A file with a mistake changes nothing.

`l2rtui config check` names every mistake of file and variables. It also checks the tables of contexts that are
not in use, and names tables of contexts that the kubeconfig lacks.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    table = KeyTable(KEYS)
    # The default table: the page describes the app without any user's own bindings.
    for context in KeyContext:
        yield f"## {context}\n"
        yield "| key | effect | name |\n| --- | --- | --- |"
        for key in table.of(context):
            yield f"| `{_cell(key.face)}` | {_cell(key.tooltip)}{' ✎' if key.changes else ''} | `{key.id}` |"
        yield ""
    yield "## Commands\n\nAfter `:`; tab completes them.\n"
    yield "| command | effect |\n| --- | --- |"
    for command in COMMANDS:
        usage = f"{command.name} {command.takes}".strip()
        yield f"| `{_cell(usage)}` | {_cell(command.tooltip)}{' ✎' if command.changes else ''} |"
    yield ""
    yield _BINDING


def _cell(text: str) -> str:
    # A bare | would end the cell, even inside backticks.
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
