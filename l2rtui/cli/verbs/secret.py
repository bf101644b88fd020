"""secret: keys and logins for runs, from the environment or a prompt; values are never displayed."""

from __future__ import annotations

import json
import os
from typing import Any

from l2rtui.backends.base import SecretStore
from l2rtui.cli.output import can_ask
from l2rtui.cli.session import Session
from l2rtui.cli.verbs.image import login_from_terminal
from l2rtui.cloud.images.credentials import auth_document
from l2rtui.config import user_name
from l2rtui.domain.imageref import ecr_region
from l2rtui.domain.secret import REGISTRY_KEY, Secret, SecretKind, SecretView
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, UsageError
from l2rtui.services import images
from l2rtui.services.history import journal
from l2rtui.tables.column import Column, View

VIEW = View(
    "secret",
    (
        Column("SECRET", "secret"),
        Column("FOR", "kind"),
        Column("KEYS", lambda document: ", ".join(document["keys"])),
        Column("OWNER", "owner"),
        Column("CREATED", "created", is_wide=True),
    ),
)


async def run_secret(session: Session) -> int:
    """Run the action that the first argument names."""
    backend = session.backend
    if backend.secrets is None:
        raise UsageError(f"The {backend.name} backend keeps no secrets.", "Choose --backend kubernetes or local.")
    actions = {"create": _create, "ls": _list, "delete": _delete}
    return await actions[session.args.action](session, backend.secrets)


async def _create(session: Session, store: SecretStore) -> int:
    args = session.args
    name = _named(session)
    if session.settings.readonly:
        session.require_change("secret create")
    if args.registry and (args.from_env or args.prompt):
        raise UsageError("--registry makes a secret of its own: leave out --from-env and --prompt.")
    if args.registry:
        secret = Secret(name, SecretKind.REGISTRY, ((REGISTRY_KEY, await _login_of(session)),))
    else:
        secret = Secret(name, SecretKind.VARIABLES, tuple(_variables(session).items()))
    if problem := secret.problem():
        raise UsageError(f"{problem}.")
    await store.keep(secret, replace=args.replace)
    journal.record("secret create", name, "done", keys=[key for key, _ in secret.values])
    session.talk.say(f"kept the secret {name}: {', '.join(key for key, _ in secret.values)}")
    field = "pull_secrets" if args.registry else "secrets"
    session.talk.say(f"A spec names it: pod: {{{field}: [{name}]}}")
    session.out.show_one(VIEW, _document(SecretView(name, secret.kind, tuple(dict(secret.values)), user_name())))
    return EXIT_DONE


def _variables(session: Session) -> dict[str, str]:
    args = session.args
    names = [name for words in args.from_env for name in words.split(",") if name]
    if not names and not args.prompt:
        hint = "Name variables with --from-env, keys to ask for with --prompt, or a registry with --registry."
        raise UsageError("secret create needs something to keep.", hint)
    values = {}
    for name in names:
        if "=" in name:  # the value would be in the shell's history and in the process list
            raise UsageError("--from-env takes the name of a variable, and no value.", "Set the variable first.")
        if not os.environ.get(name):
            raise UsageError(f"The variable {name} is not set.", f"Use --prompt {name} to be asked for it.")
        values[name] = os.environ[name]
    if args.prompt and not can_ask():
        raise UsageError("There is no terminal to ask on.", "Set variables, and name them with --from-env.")
    return values | {key: session.ask_hidden(f"{key}: ") for key in args.prompt}


async def _login_of(session: Session) -> str:
    host = session.args.registry
    login = None if session.args.username else await images.login_for(host)
    if login is None or login.is_token:
        login = login_from_terminal(session, host)
    if ecr_region(host):
        session.talk.say(f"A login of {host} is good for twelve hours; nodes in Amazon's cloud need none.")
    return json.dumps(auth_document(host, login))


async def _list(session: Session, store: SecretStore) -> int:
    secrets = await store.list()
    if store.hidden:
        session.talk.say(store.hidden)
    session.out.show_all(VIEW, [_document(secret) for secret in secrets])
    return EXIT_DONE


async def _delete(session: Session, store: SecretStore) -> int:
    session.require_change("secret delete")
    name = _named(session)
    if not session.confirm(lambda: f"Delete the secret {name} {session.backend.acts_on()}?"):
        return EXIT_FAILED
    await store.delete(name)
    journal.record("secret delete", name, "done")
    session.talk.say(f"deleted the secret {name}")
    return EXIT_DONE


def _named(session: Session) -> str:
    if not session.args.name:
        raise UsageError(f"secret {session.args.action} needs a name.")
    return str(session.args.name)


def _document(secret: SecretView) -> dict[str, Any]:
    return {
        "secret": secret.name,
        "kind": str(secret.kind),
        "keys": list(secret.keys),
        "owner": secret.owner,
        "created": secret.created,
    }
