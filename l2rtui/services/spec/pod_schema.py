"""The ``pod`` of a spec file to PodSettings and back: the run's word first, then the set's own."""

from __future__ import annotations

from typing import Any

import msgspec

from l2rtui.domain.containers import Binding, Mount, PodSettings, Security, Toleration
from l2rtui.domain.quantity import parse_quantity
from l2rtui.services.specform import MountForm, PodForm, TolerationForm

_DEFAULT = PodSettings()


def pod_settings(run: PodForm, one: PodForm, where: str) -> PodSettings:
    """Join what is said for the run and for one set.

    Args:
        where: Name of the set, for sentences.

    Raises:
        ValueError: a quantity or a mount is wrong; names the field.
    """

    def said(name: str) -> Any:
        own = getattr(one, name)
        return getattr(run, name) if own is None else own

    plain = {
        name: value
        for name in ("image", "pull_policy", "service_account", "host_network", "user")
        if (value := said(name)) is not None
    }
    shm = said("shm")
    settings = PodSettings(
        binding=Binding(said("binding") or _DEFAULT.binding),
        pull_secrets=_joined(run.pull_secrets, one.pull_secrets),
        secrets=_joined(run.secrets, one.secrets),
        node_selector=tuple({**run.node_selector, **one.node_selector}.items()),
        tolerations=_joined(map(_toleration, run.tolerations), map(_toleration, one.tolerations)),
        mounts=_joined((_mount(form, where) for form in run.mounts), (_mount(form, where) for form in one.mounts)),
        shm_bytes=None if shm is None else _size(shm, f"{where}: pod.shm"),
        ports=_joined(run.ports, one.ports),
        security=Security(said("security") or _DEFAULT.security),
        **plain,
    )
    if problem := settings.mount_problem():
        raise ValueError(f"{where}: pod.mounts: {problem}")
    return settings


def pod_form(settings: PodSettings) -> PodForm:
    """The form that says these settings, without what is the default anyway."""

    def unless_default(name: str) -> Any:
        value = getattr(settings, name)
        return None if value == getattr(_DEFAULT, name) else value

    return PodForm(
        **{
            name: unless_default(name)
            for name in ("binding", "image", "pull_policy", "service_account", "host_network", "security", "user")
        },
        pull_secrets=list(settings.pull_secrets),
        secrets=list(settings.secrets),
        node_selector=dict(settings.node_selector),
        tolerations=[_toleration_form(one) for one in settings.tolerations],
        mounts=[
            MountForm(
                one.path,
                one.claim,
                one.host_path,
                one.in_memory,
                one.size_bytes,
                one.read_only,
                one.sub_path,
            )
            for one in settings.mounts
        ],
        shm=settings.shm_bytes,
        ports=list(settings.ports),
    )


def _joined(*parts: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _toleration(form: TolerationForm) -> Toleration:
    return Toleration(form.key, form.value, form.effect)


def _toleration_form(one: Toleration) -> TolerationForm:
    return msgspec.convert({"key": one.key, "value": one.value, "effect": one.effect}, TolerationForm)


def _mount(form: MountForm, where: str) -> Mount:
    size = None if form.size is None else _size(form.size, f"{where}: pod.mounts: {form.path}: size")
    return Mount(form.path, form.claim, form.host_path, form.in_memory, size, form.read_only, form.sub_path)


def _size(value: str | float, field: str) -> int:
    try:
        size = int(parse_quantity(value))
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    if size <= 0:
        raise ValueError(f"{field}: {value} is no size")
    return size
