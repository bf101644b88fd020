"""image: build, push, login and ls. A launch then names the image by digest."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from l2rtui.cli.output import can_ask
from l2rtui.cli.session import Session
from l2rtui.cloud.images.credentials import Login
from l2rtui.cloud.images.engine import ImageEngine
from l2rtui.domain.imageref import ImageRef, ecr_region, parse_image
from l2rtui.errors import EXIT_DONE, UsageError
from l2rtui.services import images
from l2rtui.tables.artifacts import IMAGES, image_document, local_image_document

_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")


async def run_image(session: Session) -> int:
    """Run the action that the first argument names."""
    actions = {"build": _build, "push": _push, "login": _login, "ls": _list, "source": _write_source}
    return await actions[session.args.action](session)


async def _build(session: Session) -> int:
    session.require_change("image build")
    args = session.args
    source = await images.find_source(args.source)
    image = images.named(args.name or images.NODE_NAME)
    image = image if image.tag and not args.tag else image.tagged(args.tag or source.tag)
    if not source.revision:
        session.talk.say(f"{source.folder} is not a git work tree: the image has no revision label.")
    elif source.is_dirty:
        session.talk.say(f"The work tree differs from revision {source.revision}: the image is marked as dirty.")
    recipe = images.Recipe(source, image, args.base, _pairs(args.build_arg), args.network)
    async with _engine() as engine:
        built: images.Built | None = None
        async with aclosing(images.build(engine, recipe)) as steps:
            async for step in steps:
                if isinstance(step, images.Built):
                    built = step
                else:
                    session.talk.step(step.text, is_step=step.is_step)
        pushed = await _carry(session, engine, image) if args.push else None
        if built is not None:
            session.talk.say(f"built {built.image}")
        return await _print_one(session, engine, image, pushed)


async def _write_source(session: Session) -> int:
    """Write the Dockerfiles and what they copy, to be read or changed."""
    folder = Path(_named(session, "source"))
    await asyncio.to_thread(images.write_source, folder)
    session.talk.say(f"wrote {folder}/docker: `l2rtui image build --source {folder}` builds from it")
    return EXIT_DONE


async def _push(session: Session) -> int:
    session.require_change("image push")
    image = images.named(_named(session, "push"))
    image = image if image.tag and not session.args.tag else image.tagged(session.args.tag or "latest")
    async with _engine() as engine:
        if await engine.find(str(image)) is None:
            await _tag_newest(session, engine, image)
        pushed = await _carry(session, engine, image)
        return await _print_one(session, engine, image, pushed)


async def _tag_newest(session: Session, engine: ImageEngine, image: ImageRef) -> None:
    """Tag the newest local build with the name to push, if that name does not exist yet."""
    last = image.repository.rpartition("/")[2]
    built = [item for item in await engine.images() if parse_image(item.name).repository.rpartition("/")[2] == last]
    if not built:
        raise UsageError(f"There is no image {image} here.", "Build it first: `l2rtui image build`.")
    await engine.tag(built[0].id, image)
    session.talk.say(f"{image} is {built[0].name}.")


async def _carry(session: Session, engine: ImageEngine, image: ImageRef) -> images.Pushed:
    image = images.destination(str(image))
    if await images.prepare_registry(image):
        session.talk.say(f"made the repository {image.repository}")
    result: images.Pushed | None = None
    meaning = "layers that have arrived are kept; push again to go on."
    with session.interruption(meaning):
        pushing = images.push(engine, image, lambda: images.login_for(image.registry))
        async with aclosing(pushing) as steps:
            async for step in steps:
                if isinstance(step, images.Pushed):
                    result = step
                else:
                    session.talk.step(step.text, is_step=step.is_step)
    assert result is not None  # noqa: S101  (the last item, or an error)
    session.talk.say(f"pushed {result.image}: {result.layers} layers, {result.present} were there already")
    return result


async def _login(session: Session) -> int:
    session.require_change("image login")
    host = _named(session, "login")
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is not a registry: write a host name, such as registry.example:5000.")
    if ecr_region(host):
        await images.login_for(host)
        session.talk.say(f"{host} takes the AWS credentials of this account; nothing needs to be kept.")
        return EXIT_DONE
    where = await images.log_in(host, login_from_terminal(session, host))
    session.talk.say(f"logged in to {host}; kept in {where}")
    return EXIT_DONE


def login_from_terminal(session: Session, host: str) -> Login:
    """Prompt for the login of a registry; the password is not echoed and is never an argument."""
    args = session.args
    if getattr(args, "password_stdin", False):
        if not args.username:
            raise UsageError("--password-stdin needs --username.")
        return Login(args.username, sys.stdin.read().rstrip("\r\n"))
    if not can_ask():
        sentence = f"There is no terminal to ask for the password of {host} on."
        raise UsageError(sentence, "Use --username and --password-stdin.")
    user = args.username or session.ask_text(f"User at {host}: ")
    return Login(user, session.ask_hidden(f"Password of {user} at {host}: "))


async def _list(session: Session) -> int:
    name = session.args.name
    if name:
        image = images.named(name)
        documents = [image_document(str(image.tagged(tag)), digest) for tag, digest in await images.tags_of(image)]
        session.out.show_all(IMAGES, documents)
        return EXIT_DONE
    async with _engine() as engine:
        session.out.show_all(IMAGES, [local_image_document(local_image) for local_image in await engine.images()])
    return EXIT_DONE


async def _print_one(session: Session, engine: ImageEngine, image: ImageRef, pushed: images.Pushed | None) -> int:
    local_image = await engine.find(str(image))
    document = local_image_document(local_image) if local_image else image_document(str(image), "")
    if pushed is not None:
        document |= {"digest": pushed.image.digest, "pinned": str(pushed.image)}
    session.out.show_one(IMAGES, document)
    return EXIT_DONE


@asynccontextmanager
async def _engine() -> AsyncIterator[ImageEngine]:
    engine = ImageEngine()
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def _named(session: Session, action: str) -> str:
    if not session.args.name:
        raise UsageError(f"image {action} needs a name.", f"Write `l2rtui image {action} NAME`.")
    return str(session.args.name)


def _pairs(options: list[str]) -> dict[str, str]:
    pairs = {}
    for word in options:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--build-arg {word}: write it as NAME=VALUE.")
        pairs[key] = value
    return pairs
