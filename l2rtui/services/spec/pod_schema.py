"""The ``pod`` of a spec file to PodSettings and back; a set's own value wins over the run's."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from l2rtui.domain.containers import Mount, PodSettings, Scheduling, Security, Toleration
from l2rtui.domain.kinds import Binding
from l2rtui.domain.quantity import parse_bytes
from l2rtui.services.spec.schema import MountForm, PodForm, TolerationForm
from runtime.base import bounded_json

_DEFAULT = PodSettings()


def pod_settings(run: PodForm, set_form: PodForm, where: str) -> PodSettings:
    """Merge the settings of the run and of one set.

    Args:
        where: Name of the set, for messages.

    Raises:
        ValueError: a quantity or a mount is wrong; names the field.
    """

    def value_of(name: str) -> Any:
        own = getattr(set_form, name)
        return getattr(run, name) if own is None else own

    plain = {
        name: value
        for name in ("image", "pull_policy", "service_account", "host_network", "user")
        if (value := value_of(name)) is not None
    }
    shm, device = value_of("shm"), _device(value_of("device"), where)
    binding = Binding(value_of("binding") or _DEFAULT.binding)
    settings = PodSettings(
        # Only NVIDIA's runtime uses variables; device plugins provide all other devices.
        binding=Binding.DEVICE_PLUGIN if device and binding is Binding.ENV else binding,
        pull_secrets=_joined(run.pull_secrets, set_form.pull_secrets),
        secrets=_joined(run.secrets, set_form.secrets),
        node_selector=tuple({**run.node_selector, **set_form.node_selector}.items()),
        tolerations=_joined(
            Toleration(form.key, form.value, form.effect) for form in (*run.tolerations, *set_form.tolerations)
        ),
        mounts=_joined(_mount(form, where) for form in (*run.mounts, *set_form.mounts)),
        shm_bytes=None if shm is None else _size(shm, f"{where}: pod.shm"),
        ports=_joined(run.ports, set_form.ports),
        security=Security(value_of("security") or _DEFAULT.security),
        templates=(*_templates(run, where), *_templates(set_form, where)),
        device=device,
        **plain,
    )
    if problem := settings.mount_problem():
        raise ValueError(f"{where}: pod.mounts: {problem}")
    return replace(settings, patched_scheduling=_scheduling(settings, where)) if settings.templates else settings


def pod_form(settings: PodSettings) -> PodForm:
    """Return the form of these settings, without default values."""

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
        tolerations=[
            bounded_json.convert(item, TolerationForm, from_attributes=True) for item in settings.tolerations
        ],
        mounts=[MountForm(*msgspec.structs.astuple(mount)) for mount in settings.mounts],
        shm=settings.shm_bytes,
        ports=list(settings.ports),
        device=settings.device or None,
        template=_template(settings),
    )


def _templates(form: PodForm, where: str) -> tuple[str, ...]:
    """Return the patches of a form as JSON; the run's come first, so that the set's own win."""
    if not form.template:
        return ()
    # Few specs have one, and the check belongs to the manifests of Kubernetes.
    from l2rtui.backends.kubernetes.manifests import pod_patch

    patches = form.template if isinstance(form.template, list) else [form.template]
    for patch in patches:
        if problem := pod_patch.problem(patch):
            raise ValueError(f"{where}: pod.template: {problem}")
    return tuple(msgspec.json.encode(patch).decode() for patch in patches)


def _scheduling(settings: PodSettings, where: str) -> Scheduling | None:
    from l2rtui.backends.kubernetes.manifests import scheduling

    try:
        return scheduling.patched(settings)
    except ValueError as error:
        raise ValueError(f"{where}: pod.template: {error}") from None


def _template(settings: PodSettings) -> dict[str, Any] | list[dict[str, Any]] | None:
    patches = [bounded_json.decode(text) for text in settings.templates]
    return patches if len(patches) > 1 else next(iter(patches), None)


def _device(name: str | None, where: str) -> str:
    if not name:
        return ""
    from l2rtui.backends.kubernetes.extended_resources import WHOLE, is_countable

    if not is_countable(name):
        kinds = (
            "amd.com/gpu, gpu.intel.com/i915, gpu.intel.com/xe, a GPU by its model such as nvidia.com/a100, "
            "or a MIG profile such as nvidia.com/mig-1g.5gb"
        )
        raise ValueError(f"{where}: pod.device: {name!r} is no device that is counted here: write {kinds}")
    return "" if name == WHOLE else name


def _joined(*parts: Any) -> tuple[Any, ...]:
    # Lists are joined; a value in both appears once, at its first position.
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _mount(form: MountForm, where: str) -> Mount:
    size = None if form.size is None else _size(form.size, f"{where}: pod.mounts: {form.path}: size")
    return Mount(form.path, form.claim, form.host_path, form.in_memory, size, form.read_only, form.sub_path)


def _size(value: str | float, field: str) -> int:
    try:
        size = parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    if size <= 0:
        raise ValueError(f"{field}: {value} is no size")
    return size
