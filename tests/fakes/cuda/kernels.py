"""Kernels of the device: each computes by the host's kernel on the same memory, immediately or in a graph's
replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor

from tests.fakes.cuda import accesses, pinned
from tests.fakes.cuda.library import clocks

_simulated: Final = torch.ops.simulated
host_view: Final = _simulated.host_view
AWAITED: Final = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave.Tensor",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
"""Operations whose result the host needs before it can continue."""
INDEXES: Final = {"aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put_", "aten::_index_put_impl_"}
"""Operations that take indices of the host, for which it waits, and masks, whose true elements it counts."""
CHOOSES_ROWS: Final = {"aten::index_select", "aten::index_select.out"}
TOO_LATE: Final = "Attempt to increase offset for a CUDA generator not in capture mode."

captures: Final[dict[int, Any]] = {}
"""Graphs that are being captured, by their streams."""
default_generators: Final[list[torch.Generator]] = []
Convert = Callable[[Tensor], Tensor]


class NotPermittedError(RuntimeError):
    """Operation that CUDA refuses during a capture."""

    def __init__(self, name: str) -> None:
        super().__init__(f"CUDA error: operation not permitted when stream is capturing ({name})")


def is_on_device(value: Any) -> bool:
    """Return true for a tensor of the device."""
    return isinstance(value, Tensor) and value.device.type == "cuda"


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yield all tensors of arguments, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(*value)


def is_among(tensor: Any, tensors: list[Tensor]) -> bool:
    """Return true if it is one of these tensors by identity, regardless of values."""
    return any(tensor is other for other in tensors)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a value, or a list or tuple of values, with the function applied to each."""
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(function, item) for item in value)
    return function(value)


class Call:
    """Operation with its arguments, some of them tensors of the device."""

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op = op
        self.name: str = op.name()
        # Numbers passed for tensors have become Python numbers.
        self.args = tuple(
            torch.tensor(value) if isinstance(value, (int, float)) and str(argument.type) == "Tensor" else value
            for argument, value in zip(schema_of(op).arguments, args, strict=False)
        )
        self.kwargs = kwargs
        self.tensors = list(tensors_in(*self.args, *kwargs.values()))
        self.read = [tensor for tensor in self.tensors if is_on_device(tensor)]
        by_name = {argument.name: argument for argument in schema_of(op).arguments}
        named = [*zip(schema_of(op).arguments, self.args, strict=False)] + [
            (by_name[name], value) for name, value in kwargs.items()
        ]
        changed = [pair for pair in named if pair[0].alias_info is not None and pair[0].alias_info.is_write]
        self.written = [tensor for _, value in changed for tensor in tensors_in(value)]
        self.outs = [tensor for argument, value in changed if argument.is_out for tensor in tensors_in(value)]
        """Written tensors to which the kernel may give another shape."""
        self.generators = [value for _, value in named if isinstance(value, torch.Generator)]
        self._draws_by_default = (
            not self.generators and torch.Tag.nondeterministic_seeded in op.tags and "generator" in by_name
        )
        if self._draws_by_default:
            self.generators = [default_generators[max(0, self.device)]]

    @cached_property
    def is_view(self) -> bool:
        """True if the result is another view of the same memory, which is neither read nor written."""
        results = schema_of(self.op).returns
        return not self.written and any(result.alias_info is not None for result in results)

    @cached_property
    def is_awaited(self) -> bool:
        """True if the host waits for the device."""
        if self.name not in INDEXES:
            return self.name in AWAITED
        indices = list(tensors_in(self.args[1]))
        masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
        # A fill by a mask counts nothing.
        is_fill = "index_put" in self.name and self.args[2].numel() == 1
        return any(not is_on_device(index) for index in indices) or (bool(masks) and not is_fill)

    def rows(self) -> dict[int, Any]:
        """Return the rows read by a row selection, by the tensor that they belong to."""
        if self.name in CHOOSES_ROWS and self.args[1] == 0:
            return {id(self.args[0]): host_view(self.args[2]).numpy()}
        return {}

    def made(self, results: Any) -> list[Tensor]:
        """Return the results that have separate memory."""
        return [tensor for tensor in tensors_in(results) if not is_among(tensor, self.written)]

    def check_devices(self) -> None:
        """Raise RuntimeError for tensors of two devices; single numbers of the host are passed by value."""
        devices = {str(tensor.device): None for tensor in self.tensors if tensor.dim() or is_on_device(tensor)}
        if self.name in INDEXES:
            devices.pop("cpu", None)
        if len(devices) > 1:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(devices)}! ({self.name})"
            )

    def on_host(self, convert: Convert, *, is_drawing: bool = True) -> OnHost:
        """Return this call of the host's kernel; ``convert`` gives a tensor of the host for one of the device."""
        hosts: dict[int, tuple[Tensor, Tensor]] = {}

        def host_of(value: Any) -> Any:
            if is_on_device(value):
                if id(value) not in hosts:
                    hosts[id(value)] = value, convert(value)
                return hosts[id(value)][1]
            if isinstance(value, torch.Generator):
                return numbers_of(value, self._draws, is_drawing=is_drawing)
            return value

        args = mapped(host_of, self.args)
        kwargs = {name: mapped(host_of, value) for name, value in self.kwargs.items()}
        if self._draws_by_default:
            kwargs["generator"] = host_of(self.generators[0])
        return OnHost(self, args, kwargs, list(hosts.values()))

    @cached_property
    def device(self) -> int:
        """Index of the device that computes."""
        return next((tensor.device.index for tensor in self.tensors if is_on_device(tensor)), -1)

    @property
    def _draws(self) -> int:
        return max((tensor.numel() for tensor in self.tensors), default=0)


@dataclass
class OnHost:
    """Call of the host's kernel: pairs each tensor of the device with the host tensor that replaces it."""

    call: Call
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pairs: list[tuple[Tensor, Tensor]]

    def run(self) -> Any:
        """Compute; return the result of the host's kernel."""
        return self.call.op(*self.args, **self.kwargs)

    def original(self, host: Any) -> Tensor | None:
        """Return the argument that is this result."""
        return next((original for original, other in self.pairs if other is host), None)

    def on_device(self, results: Any, *, is_computed: bool = True) -> Any:
        """Return results as device tensors: arguments, views of them, or new tensors."""
        return mapped(partial(self._on_device, is_computed=is_computed), results)

    def _on_device(self, value: Any, *, is_computed: bool) -> Any:
        if not isinstance(value, Tensor):
            return value
        if (original := self.original(value)) is not None:
            if is_among(original, self.call.outs):
                if original.shape != value.shape:
                    _simulated.resize(original, value)
                if is_computed:
                    host_view(original).copy_(value)
            return original
        for original, host in self.pairs:
            if storage_of(value) == storage_of(host):
                return _simulated.device_view(original, value)
        made = _simulated.empty_device(list(value.shape), list(value.stride()), value.dtype, self.call.device)
        if is_computed and value.numel():
            host_view(made).copy_(value)
        return made


def schema_of(op: Any) -> Any:
    """Return the declared arguments and results of an operation."""
    return op._schema


def storage_of(tensor: Tensor) -> int:
    """Return the address of the object that owns a tensor's memory."""
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


def below_autograd() -> Any:
    """Return a context in which operations go to the kernels of a device."""
    return torch._C._AutoDispatchBelowAutograd()


def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Kernel of every operation without a separate one below."""
    with below_autograd():
        return launched(Call(op, args, kwargs))


def launched(call: Call) -> Any:
    """Compute immediately, or record the call for replays of the graph that is being captured."""
    call.check_devices()
    if call.is_view:
        on_host = call.on_host(host_view)
        return on_host.on_device(on_host.run())
    stream = clocks.current_stream(call.device)
    if stream in captures:
        return captured(call, captures[stream])
    accesses.note(stream, call.name, call.read, call.written, call.rows())
    # An `out` that gets another shape must own its memory.
    on_host = call.on_host(
        lambda tensor: host_view(tensor).clone() if is_among(tensor, call.outs) else host_view(tensor)
    )
    results = on_host.on_device(on_host.run())
    if made := call.made(results):
        accesses.note(stream, call.name, [], made)
    if call.is_awaited:
        clocks.host_waits_for_stream(stream)
        pinned.settle()
    return results


def captured(call: Call, graph: Any) -> Any:
    """Add a node to the graph; return results without values. Raises RuntimeError for operations not allowed in a
    graph.
    """
    if call.is_awaited:
        raise NotPermittedError(call.name)
    known = {_simulated.generator_id(generator) for generator in graph.generators}
    if any(_simulated.generator_id(generator) not in known for generator in call.generators):
        raise RuntimeError(TOO_LATE)

    def without_effect(tensor: Tensor) -> Tensor:
        # Only the results' shapes are used. Written tensors are copies. Indices that earlier nodes will compute may
        # hold any value so far, and the host's kernel checks them.
        host = host_view(tensor)
        if is_among(tensor, call.written):
            return host.clone(memory_format=torch.preserve_format)
        return host if host.is_floating_point() else torch.zeros_like(host)

    on_host = call.on_host(without_effect, is_drawing=False)
    results = on_host.on_device(on_host.run(), is_computed=False)
    graph.nodes.append(Node(call, call.made(results)))
    return results


class Node:
    """Call in a graph: uses the same memory and the same numbers at each replay."""

    def __init__(self, call: Call, made: list[Tensor]) -> None:
        self._call = call
        self._made = made
        self._hosts = [host_view(tensor) for tensor in made]
        self._on_host: OnHost | None = None

    def replay(self) -> None:
        """Compute on the current stream."""
        call = self._call
        accesses.note(
            clocks.current_stream(call.device), call.name, call.read, [*call.written, *self._made], call.rows()
        )
        on_host = self._on_host or call.on_host(host_view)
        # Calls that draw need new random numbers each time.
        self._on_host = None if call.generators else on_host
        results = [result for result in tensors_in(on_host.run()) if on_host.original(result) is None]
        for target, values in zip(self._hosts, results, strict=True):
            target.copy_(values)


def numbers_of(generator: torch.Generator, draws: int, *, is_drawing: bool) -> torch.Generator:
    """Return a generator of the host for the next numbers, and advance the device's."""
    seed, offset = generator.get_state().view(torch.int64).tolist()
    if is_drawing:
        generator.set_state(torch.tensor([seed, offset + 4 * (1 + draws // 4)]).view(torch.uint8))
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + offset * 0xBF58476D1CE4E5B9 + 1) % 2**63)


def empty(size: list[int], *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    """Kernel of `aten::empty.memory_format`."""
    formats = {} if memory_format in (None, torch.preserve_format) else {"memory_format": memory_format}
    shape = torch.empty(size, device="meta", **formats)
    return empty_strided(size, shape.stride(), dtype=dtype, device=device)


def empty_strided(size: list[int], stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Kernel of `aten::empty_strided`."""
    index = -1 if device is None or device.index is None else device.index
    made: Tensor = _simulated.empty_device(list(size), list(stride), dtype or torch.get_default_dtype(), index)
    return made


def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Kernel of `aten::copy_`, on this device and between it and the host."""
    with below_autograd():
        if is_on_device(target) and source.device == target.device:
            result: Tensor = launched(Call(torch.ops.aten.copy_.default, (target, source, non_blocking), {}))
            return result
        if is_on_device(target) and is_on_device(source):
            copy_to_peer(target, source)
            return target
        copy = CopyNode(target, source, non_blocking)
        graph = captures.get(copy.stream)
        if graph is None:
            copy.replay()
        elif copy.is_async:
            graph.nodes.append(copy)
        else:
            raise NotPermittedError("copy between host and device")
        return target


def copy_to_peer(target: Tensor, source: Tensor) -> None:
    """Copy between two devices: on the source's stream, after both have reached this point; both continue after the
    copy.
    """
    stream, other = (clocks.current_stream(tensor.device.index) for tensor in (source, target))
    clocks.stream_waits(stream, clocks.record_event(other))
    accesses.note(stream, "copy to another device", [source], [target])
    host_view(target).copy_(host_view(source))
    clocks.stream_waits(other, clocks.record_event(stream))


class CopyNode:
    """Copy between host and device. The host waits for it unless its side is pinned and non_blocking is set."""

    def __init__(self, target: Tensor, source: Tensor, non_blocking: bool) -> None:
        self._target, self._source = target, source
        self._is_upload = is_on_device(target)
        self._device = (target if self._is_upload else source).device.index
        self.is_async = non_blocking and (source if self._is_upload else target).is_pinned()

    @property
    def stream(self) -> int:
        """Number of the stream that copies."""
        return int(clocks.current_stream(self._device))

    def replay(self) -> None:
        """Copy, on the current stream."""
        stream = self.stream
        if self._is_upload:
            number = accesses.note(stream, "copy from the host", [], [self._target])
            if self.is_async:
                pinned.bring(stream, self._source)
                pinned.leave(stream, number, self._source)
            host_view(self._target).copy_(self._source)
        else:
            number = accesses.note(stream, "copy to the host", [self._source], [])
            values = host_view(self._source)
            if self.is_async:
                pinned.arrive(stream, number, self._target, values.to(self._target.dtype))
            else:
                self._target.copy_(values)
        if not self.is_async:
            clocks.host_waits_for_stream(stream)
            pinned.settle()


_libraries: Final[list[torch.library.Library]] = []
"""Kept alive: registrations end with these objects."""


def register() -> None:
    """Register the kernels with torch."""
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(fallback, "CUDA")
    aten.impl("empty.memory_format", empty, "CUDA")
    aten.impl("empty_strided", empty_strided, "CUDA")
    aten.impl("copy_", copy_, "CUDA")
    # The generic kernel of this one makes its `out` without a shape and warns about it.
    aten.impl("mse_loss", partial(fallback, torch.ops.aten.mse_loss.default), "CUDA")
    _libraries.extend([every, aten])
