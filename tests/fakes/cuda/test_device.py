"""The simulated device: values of the host, and errors for operations that a card would refuse or leave to
chance.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
SIZE = 1024


@pytest.fixture(autouse=True)
def races_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The races below are intended: they raise, and are not reported to the plugin."""
    from tests.fakes.cuda.accesses import RACES

    monkeypatch.delenv(RACES, raising=False)


@pytest.fixture
def race() -> type[AssertionError]:
    from tests.fakes.cuda.accesses import RaceError

    return RaceError


@pytest.fixture
def other() -> Iterator[torch.cuda.Stream]:
    """Another stream than the current one, ordered after it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    yield stream
    torch.cuda.synchronize()


def pinned(value: float) -> torch.Tensor:
    return torch.full((SIZE,), value, pin_memory=True)


def test_a_network_learns_as_on_the_host() -> None:
    def losses(device: str) -> list[float]:
        generator = torch.Generator().manual_seed(0)
        network = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(36, 2)
        )
        for parameter in network.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        pictures = torch.randn(5, 3, 8, 8, generator=generator).to(device)
        network.to(device)
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
        found = []
        for _ in range(5):
            loss = torch.nn.functional.mse_loss(network(pictures), pictures[:, :2, 0, 0])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append(loss.item())
        return found

    assert losses("cuda") == pytest.approx(losses("cpu"), rel=1e-5)


def test_views_are_of_the_same_memory_and_new_memory_holds_nothing() -> None:
    values = torch.zeros(4, 6, device="cuda")
    values[1:3].T[2:4].add_(1.0)
    assert values.sum().item() == 4.0
    values.view(-1)[0] = 5.0
    assert values[0, 0].item() == 5.0
    assert torch.empty(3, device="cuda").isnan().all()


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)
    assert (torch.ones(3, device="cuda") + torch.tensor(2.0)).tolist() == [3.0] * 3


def test_a_stream_that_reads_or_overwrites_must_wait(race: type[AssertionError], other: torch.cuda.Stream) -> None:
    values = torch.ones(SIZE, device="cuda")
    with torch.cuda.stream(other), pytest.raises(race, match="does not wait"):
        values.sum()
    event = torch.cuda.Event()
    event.record()
    other.wait_event(event)
    with torch.cuda.stream(other):
        total = values.sum()
    with pytest.raises(race, match=r"overwrites what aten::sum\S* on stream \d+ reads"):
        values.zero_()
    other.synchronize()
    values.zero_()
    assert total.item() == SIZE


def test_memory_is_kept_for_the_streams_that_use_it(race: type[AssertionError], other: torch.cuda.Stream) -> None:
    for is_recorded in (True, False):
        values = torch.ones(SIZE, device="cuda")
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            values.sum()
        if is_recorded:
            values.record_stream(other)
        del values
        if is_recorded:
            torch.ones(1, device="cuda")
    with pytest.raises(race, match="is freed while"):
        torch.ones(1, device="cuda")


def test_rows_that_nobody_writes_may_be_chosen(race: type[AssertionError], other: torch.cuda.Stream) -> None:
    ring, rows = torch.zeros(8, 4, device="cuda"), torch.tensor([0, 5], device="cuda")
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        ring[2:5].add_(1.0)
    torch.index_select(ring, 0, rows)
    with torch.cuda.stream(other):
        ring[1].add_(1.0)
        with pytest.raises(race):
            ring[5].add_(1.0)


def test_pinned_memory_arrives_when_it_was_waited_for() -> None:
    target, event = pinned(0.0), torch.cuda.Event()
    target.copy_(torch.full((SIZE,), 7.0, device="cuda"), non_blocking=True)
    event.record()
    assert not (target == 7.0).any()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert (target == 7.0).all()


def test_pinned_memory_is_left_alone_until_it_was_read(race: type[AssertionError]) -> None:
    source, values = pinned(1.0), torch.empty(SIZE, device="cuda")
    values.copy_(source, non_blocking=True)
    source.fill_(2.0)
    with pytest.raises(race, match="the host writes to pinned memory"):
        torch.cuda.synchronize()
    values.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    source.fill_(3.0)
    values.copy_(source)
    source.fill_(4.0)
    torch.cuda.synchronize()
    assert (values == 3.0).all()


def captured(function, generators=()):  # type: ignore[no-untyped-def]
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        outputs = function()
    return graph, outputs


def test_a_graph_repeats_its_kernels_on_its_memory() -> None:
    values, factor = torch.ones(4, device="cuda"), 3.0
    graph, product = captured(lambda: values.add_(1.0) * factor)
    factor = 100.0  # frozen at the capture
    assert values.tolist() == [1.0] * 4, "a capture computes nothing"
    assert product.isnan().all()
    graph.replay()
    assert product.tolist() == [6.0] * 4
    values.fill_(9.0)
    graph.replay()
    assert product.tolist() == [30.0] * 4


def test_a_pool_ends_with_its_last_graph() -> None:
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    first, last = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool, stream):
        torch.zeros(1, device="cuda")
    del first
    with pytest.raises(RuntimeError, match="use_count"), torch.cuda.graph(last, pool, stream):
        pass


def test_a_graph_draws_what_eager_calls_draw() -> None:
    eager, replayed = (torch.Generator("cuda").manual_seed(4) for _ in range(2))
    graph, numbers = captured(lambda: torch.randn(5, generator=replayed, device="cuda"), [replayed])
    for _ in range(3):
        graph.replay()
        assert torch.equal(numbers, torch.randn(5, generator=eager, device="cuda"))
    assert torch.equal(eager.get_state(), replayed.get_state())


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda values: values.sum().item(), "not permitted"),
        (lambda values: values[values > 0], "not permitted"),
        (lambda values: values + torch.tensor(2.0, device="cuda"), "not permitted"),
        (lambda values: values.cpu(), "not permitted"),
        (lambda _: torch.cuda.synchronize(), "not permitted"),
        (
            lambda _: torch.randn(2, generator=torch.Generator("cuda"), device="cuda"),
            "not in capture mode",
        ),
    ],
    ids=["item", "mask", "literal", "cpu", "synchronize", "generator"],
)
def test_a_capture_refuses_what_needs_the_host(refused, message) -> None:  # type: ignore[no-untyped-def]
    values = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match=message):
        captured(lambda: refused(values))
    assert torch.ones(1, device="cuda").item() == 1.0, "it goes on afterwards"


@pytest.mark.process
def test_a_process_has_the_device_as_soon_as_it_imports_torch() -> None:
    code = "import sys; before = 'torch' in sys.modules; import torch; print(before, torch.ones(2).cuda().sum())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False tensor(2., device='cuda:0')"


def test_two_devices_have_streams_memory_and_generators_of_their_own() -> None:
    first, second = (torch.ones(SIZE, device=f"cuda:{index}") for index in range(2))
    assert torch.cuda.device_count() == 2
    assert [tensor.device.index for tensor in (first, second, second * 2)] == [0, 1, 1]
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        first + second
    assert torch.cuda.current_stream(0) != torch.cuda.current_stream(1)
    with torch.cuda.device(1):
        assert torch.empty(1, device="cuda").device.index == 1
        assert torch.cuda.current_stream() == torch.cuda.current_stream(1)
    assert torch.cuda.current_device() == 0
    assert torch.Generator("cuda:1").device.index == 1


def test_a_copy_to_another_device_is_behind_and_before_the_work_of_both(race: type[AssertionError]) -> None:
    source, target = torch.ones(SIZE, device="cuda:0"), torch.zeros(SIZE, device="cuda:1")
    target.copy_(source)
    source.zero_()
    assert target.sum().item() == SIZE
    apart = torch.cuda.Stream(1)
    torch.cuda.synchronize()
    source.add_(1.0)
    with torch.cuda.stream(apart):
        target.copy_(source)
    with pytest.raises(race):
        target.zero_()
    torch.cuda.synchronize()
