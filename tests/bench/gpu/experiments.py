"""Experiments that a card decides: each row is one way to do what a learner does, beside the present one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from runtime.rl.algos.off_policy.targets import weighted_mean
from runtime.rl.buffers.replay import Batch
from runtime.rl.device.arrays import torch_arrays
from runtime.rl.device.captured import Captured
from runtime.rl.device.precision import set_float32_products
from runtime.rl.envs.registry import make_device_env
from tests.bench.gpu import updates
from tests.bench.gpu.measuring import Bench, call_seconds, show

LIMIT_SECONDS = 25.0


def measure(bench: Bench) -> None:
    if not bench.is_gpu:  # to compile for a CPU takes minutes, and streams are a card's
        show("experiments", {"left out": "no card"})
        return
    torch.set_num_threads(4)
    for title, experiment in EXPERIMENTS.items():
        if not bench.has_time(3.0, title):
            continue
        began = time.monotonic()
        try:
            experiment(bench, title)
        except Exception as error:  # noqa: BLE001  (a row that failed must not cost the others)
            bench.fail(title, f"{type(error).__name__}: {error}")
        print(f"  ({title}: {time.monotonic() - began:.1f} s)", flush=True)
        if bench.is_gpu:
            torch.cuda.empty_cache()


class Ring:
    """Replay as tensors, from which a captured function draws its own batches."""

    def __init__(self, case: updates.Case, device: str, pad: int = 0) -> None:
        rows, obs = case.rows, case.obs
        self.device, self.rows, self.width, self.size = device, rows, obs.width, case.settings["sac"]["batch_size"]
        host = torch.from_numpy(updates.observations(case, rows, 1))
        kind = host.dtype
        self.obs = torch.zeros((rows, obs.width + pad), dtype=kind, device=device)
        self.obs[:, : obs.width].copy_(host)
        self.rest = torch.randn(rows, 4, device=device)
        self.rest[:, 3] = (torch.rand(rows, device=device) < 0.05).float()
        self.following = (torch.arange(rows, device=device) + 1) % rows
        self.generator = torch.Generator(device).manual_seed(9)

    def draw(self) -> Batch:
        slots = torch.randint(0, self.rows, (self.size,), generator=self.generator, device=self.device)
        both = torch.cat([slots, self.following[slots]])
        pair = self.obs.index_select(0, both)[:, : self.width]
        rest = self.rest.index_select(0, slots)
        obs, following = pair[: self.size], pair[self.size :]
        return Batch(obs, rest[:, :2].clamp(-1, 1), rest[:, 2], following, rest[:, 3])


def in_graph(bench: Bench, sac: Any, ring: Ring, count: int, learn: Callable[..., Any]) -> Captured:
    """Return ``count`` updates as one graph: drawn, gathered, learned, targets moved."""

    def turn(value: Tensor) -> Tensor:
        for _ in range(count):
            batch = ring.draw()
            columns = (batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated)
            stats, _ = learn(*columns, None, None, None, None, None)
            if "learn_beside" not in learn.__name__:
                sac._target.arena.flat.lerp_(sac._critic.arena.flat, sac.config.tau)
        return value + stats.sum()

    return Captured(
        turn,
        torch.zeros((), device=bench.device),
        generators=[ring.generator, *sac.generators().values()],
        state=list(sac.tensors().values()),
    )


def split_learn(sac: Any, compiled: bool, reuse: bool, streams: bool = False) -> Callable[..., Any]:
    """Return SAC's update over three functions, each compiled or not; ``reuse`` keeps the critics' features."""

    def critic(obs: Tensor, action: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = sac._critic.features(obs)
        q = sac._q(features, action)
        return (
            weighted_mean(mse_loss(q, y.expand_as(q), reduction="none"), None),
            q.detach().mean(),
            features.detach(),
        )

    def actor(features: Tensor, alpha: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob = sac._actor.sample(features, noise)
        loss = (alpha * log_prob - sac._critic(features, action).min(dim=0).values).mean()
        return loss, -log_prob.detach().mean()

    def target(obs: Tensor, reward: Tensor, terminated: Tensor, alpha: Tensor, noise: Tensor) -> Tensor:
        features, target_features = sac._critic.features(obs), sac._target.features(obs)
        action, log_prob = sac._actor.sample(features, noise)
        value = sac._target(target_features, action).amin(dim=0)
        value = torch.addcmul(value, alpha, log_prob, value=-1.0)
        return torch.addcmul(reward, 1.0 - terminated, value, value=sac.config.gamma)

    if compiled:
        critic, actor, target = (torch.compile(part, dynamic=False) for part in (critic, actor, target))

    def learn(obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor, *_: Any) -> Any:
        for network in (sac._actor, sac._critic, sac._target):
            network.arena.refresh()
        alpha = sac._log_alpha.exp()
        with torch.no_grad():
            y = target(next_obs, reward, terminated, alpha, sac._draw_noise(obs))
        loss, mean_q, features = critic(obs, action, y)
        sac._optimisers["critic"].step(sac._critic.arena.gradient(loss))
        size = sum(kernel.numel() for kernel in sac._critic.kernels)
        if size:
            sac._actor.arena.flat[:size].copy_(sac._critic.arena.flat[:size])
        sac._critic.arena.refresh()
        if not reuse:
            with torch.no_grad():
                features = sac._critic.features(obs)
        actor_loss, entropy = actor(features, alpha, sac._draw_noise(obs))
        sac._optimisers["actor"].step(sac._actor.arena.gradient(actor_loss))
        sac._optimisers["log_alpha"].step((entropy - sac._target_entropy).view(1))
        return torch.stack((loss.detach(), actor_loss.detach(), alpha[0], entropy, mean_q)), None

    def learn_beside(
        obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor, *_: Any
    ) -> Any:
        """The same with the target, the critics' values and the policy's action on streams of their own."""
        main = torch.cuda.current_stream()
        alpha = sac._log_alpha.exp()
        for stream in side:
            stream.wait_stream(main)
        with torch.cuda.stream(side[0]), torch.no_grad():
            y = target(next_obs, reward, terminated, alpha, sac._draw_noise(obs))
        with torch.cuda.stream(side[1]):
            sampled, log_prob = sac._actor.sample(obs, sac._draw_noise(obs))
            entropy = -log_prob.detach().mean()
            sac._optimisers["log_alpha"].step((entropy - sac._target_entropy).view(1))
        q = sac._q(obs, action)
        main.wait_stream(side[0])
        loss = weighted_mean(mse_loss(q, y.expand_as(q), reduction="none"), None)
        sac._optimisers["critic"].step(sac._critic.arena.gradient(loss))
        main.wait_stream(side[1])
        side[0].wait_stream(main)
        with torch.cuda.stream(side[0]):
            sac._target.arena.flat.lerp_(sac._critic.arena.flat, sac.config.tau)
        actor_loss = (alpha * log_prob - sac._critic(obs, sampled).min(dim=0).values).mean()
        sac._optimisers["actor"].step(sac._actor.arena.gradient(actor_loss))
        main.wait_stream(side[0])
        return torch.stack((loss.detach(), actor_loss.detach(), alpha[0], entropy, q.detach().mean())), None

    if streams:
        side = [torch.cuda.Stream() for _ in range(2)]
        return learn_beside
    return learn


def sac_ways(case: updates.Case, precision: str, ways: Sequence[str]) -> Callable[[Bench, str], None]:
    def experiment(bench: Bench, title: str) -> None:
        nonlocal case
        device, case = bench.device, TINY_SAC if bench.is_tiny else case
        learner = updates.team(case, {"precision": precision}, device)
        if "loop" in ways:
            seconds = call_seconds(updates.loop(bench, case, learner, "device"), device)
            show(title, {"way": "loop", "updates/s": 1 / seconds})
        for pad in (0, 8) if "pad" in ways else (0,):
            ring = Ring(case, device, pad)
            for way in ways:
                name, _, number = way.partition(" ")
                count = int(number or 1)
                if name in {"loop", "pad"}:
                    continue
                learner = updates.team(case, {"precision": precision}, device)
                sac = learner.members[0]
                began = time.monotonic()
                learn = (
                    sac._learn
                    if name == "graph"
                    else split_learn(sac, "compiled" in name, "reuse" in name, "streams" in name)
                )
                graph = in_graph(bench, sac, ring, count, learn)
                value = torch.zeros((), device=device)
                seconds = call_seconds(lambda graph=graph, value=value: graph(value), device, 0.4) / count
                took = time.monotonic() - began
                figures = {"updates/s": 1 / seconds, "ms": 1e3 * seconds, "made in s": took}
                show(title, {"way": way + (" padded" if pad else ""), **figures})
            del ring

    return experiment


def gathers(bench: Bench, title: str) -> None:
    """Gather rows of pictures whose width is, or is not, a multiple of 16 bytes."""
    count = 2_000 if bench.is_tiny else 30_000
    for width in (28_248, 28_256, 28_288, 28_672):
        ring = torch.randint(0, 255, (count, width), dtype=torch.uint8, device=bench.device)
        rows = torch.randint(0, count, (512,), device=bench.device)
        out = torch.empty((512, width), dtype=torch.uint8, device=bench.device)
        select = call_seconds(lambda: torch.index_select(ring, 0, rows, out=out), bench.device, 0.2)
        wide = ring.view(torch.int64) if width % 8 == 0 else None
        figures = {"index_select us": 1e6 * select, "GB/s": 2 * 512 * width / select / 1e9}
        if wide is not None:
            target = out.view(torch.int64)
            as_words = call_seconds(lambda: torch.index_select(wide, 0, rows, out=target), bench.device, 0.2)
            figures["as int64 us"] = 1e6 * as_words
        index = call_seconds(lambda: ring[rows], bench.device, 0.2)
        show(f"{title}, {width:,} bytes", {**figures, "index us": 1e6 * index})
        del ring


def fused_racing(bench: Bench, title: str) -> None:
    """Racing's step eager, captured, and compiled then captured."""
    cars = 256 if bench.is_tiny else 65_536
    draws = torch.rand(4, cars, device=bench.device)
    generator = torch.Generator(bench.device).manual_seed(0)
    arrays = torch_arrays(bench.device, generator)
    buffer = {"draws": draws}
    env = make_device_env(
        "racing", cars, {}, type(arrays)(arrays.xp, arrays.convert, lambda shape: buffer["draws"])
    )
    names = list(env.state())
    state = [tensor.clone() for tensor in env.state().values()]

    def pure(action: Tensor, drawn: Tensor, *tensors: Tensor) -> Any:
        buffer["draws"] = drawn
        env.use_state(dict(zip(names, tensors, strict=True)))
        step = env.step(action)
        obs = env.observe()
        return step.reward, step.ended, step.final_obs, obs, step.episodes, list(env.state().values())

    for way in ("captured", "compiled"):
        function = pure if way == "captured" else torch.compile(pure, dynamic=False)
        began = time.monotonic()

        @torch.no_grad()
        def turn(action: Tensor, function: Any = function) -> Tensor:
            drawn = torch.rand(4, cars, generator=generator, device=bench.device)
            reward, _, _, _, _, new = function(action, drawn, *state)
            for tensor, value in zip(state, new, strict=True):
                tensor.copy_(value)
            return reward

        action = (torch.rand(cars, 2, device=bench.device) - 0.3) * 0.3
        graph = Captured(turn, action, generators=[generator], state=state)
        seconds = call_seconds(lambda graph=graph: graph(graph.inputs[0]), bench.device, 0.5)
        show(
            title,
            {
                "way": way,
                "cars": cars,
                "million env steps/s": cars / seconds / 1e6,
                "made in s": time.monotonic() - began,
            },
        )


def precision_of_racing(bench: Bench, title: str) -> None:
    """PPO's update of 16 x 65,536 rows in each precision, alone."""
    cars = 256 if bench.is_tiny else 65_536
    sizes = {"batch_steps": 16 * cars, "minibatch_size": 4 * cars, "epochs": 1}
    case = updates.Case(
        title,
        updates.VECTOR,
        {"algorithm": "ppo", "num_envs": cars, "segment_steps": 16, "hidden": [128, 128], "ppo": sizes},
    )
    plan, settings = updates.planned(case)
    batch = updates.batch_of(case, plan, settings, bench.device)
    for precision in ("float32", "tf32", "bfloat16"):
        learner = updates.team(case, {"precision": precision}, bench.device)
        seconds = call_seconds(lambda learner=learner: learner.update(batch), bench.device, 0.5)
        show(title, {"precision": precision, "ms": 1e3 * seconds, "million rows/s": 16 * cars / seconds / 1e6})


TINY_SAC = updates.TINY[0]
VECTOR_CASE, ATARI_CASE, CAMERA_CASE = updates.CASES[0], updates.CASES[3], updates.CASES[5]
EXPERIMENTS: dict[str, Callable[[Bench, str], None]] = {
    "SAC vector": sac_ways(VECTOR_CASE, "float32", ["loop", "graph", "graph 8", "compiled", "compiled 8"]),
    "SAC 84x84x4 float32": sac_ways(ATARI_CASE, "float32", ["loop", "graph"]),
    "SAC 84x84x4 tf32": sac_ways(ATARI_CASE, "tf32", ["pad", "graph", "reuse", "compiled-reuse"]),
    "SAC 84x84x4 bfloat16": sac_ways(ATARI_CASE, "bfloat16", ["graph", "reuse", "compiled-reuse"]),
    "SAC 512x384x3 tf32": sac_ways(CAMERA_CASE, "tf32", ["reuse"]),
    "SAC 512x384x3 bfloat16": sac_ways(CAMERA_CASE, "bfloat16", ["graph", "reuse", "compiled-reuse"]),
    "gathers of 512 rows": gathers,
    "racing": fused_racing,
    "PPO's update, 65,536 cars": precision_of_racing,
}


def encoders(bench: Bench, title: str) -> None:
    """Forward and backward of convolutions as they are, and with strides moved into channels."""
    size = 8 if bench.is_tiny else 256
    for name, (height, width, channels), batch in (
        ("84x84x4", (84, 84, 4), size),
        ("512x384x3", (384, 512, 3), size // 2),
    ):
        if bench.is_tiny and name != "84x84x4":
            continue
        rows = torch.randint(0, 255, (batch, height, width, channels), dtype=torch.uint8, device=bench.device)
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        for precision in ("tf32", "bfloat16"):
            set_float32_products(precision)
            dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
            for way in ("now", "ohwi", "nchw", "first", "all"):
                kernels, before = [], channels
                for out, side, _ in layers:
                    shape = (side, side, before, out) if way != "ohwi" else (out, side, side, before)
                    kernels.append((0.1 * torch.randn(shape, device=bench.device)).to(dtype).requires_grad_())
                    before = out

                def run(
                    way: str = way, kernels: list[Tensor] = kernels, dtype: torch.dtype = dtype, rows: Tensor = rows
                ) -> Any:
                    hidden = rows.permute(0, 3, 1, 2)
                    hidden = hidden.to(dtype)
                    if way == "nchw":
                        hidden = hidden.contiguous()
                    for number, (kernel, (_, side, stride)) in enumerate(zip(kernels, layers, strict=True)):
                        weight = kernel.permute(0, 3, 1, 2) if way == "ohwi" else kernel.permute(3, 2, 0, 1)
                        if stride > 1 and side % stride == 0 and (way == "all" or (way == "first" and not number)):
                            hidden, weight = folded(hidden, kernel, stride)
                            stride = 1
                        hidden = torch.nn.functional.conv2d(hidden, weight, None, stride).relu_()
                    return torch.autograd.grad(hidden.float().square().mean(), kernels)

                graph = Captured(lambda value, run=run: (value, run()), torch.zeros((), device=bench.device))
                value = torch.zeros((), device=bench.device)
                seconds = call_seconds(lambda graph=graph, value=value: graph(value), bench.device, 0.15)
                show(f"{title} {name}", {"precision": precision, "way": way, "ms": 1e3 * seconds})


def folded(hidden: Tensor, kernel: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Return image (B, C s s, H / s, W / s) and weight of the same convolution with stride 1."""
    side, _, before, out = kernel.shape
    count, channels, height, width = hidden.shape
    rows = (height - side) // stride * stride + side
    columns = (width - side) // stride * stride + side
    image = hidden.permute(0, 2, 3, 1)[:, :rows, :columns]
    image = image.reshape(count, rows // stride, stride, columns // stride, stride, channels)
    image = image.permute(0, 1, 3, 2, 4, 5).reshape(count, rows // stride, columns // stride, -1)
    few = side // stride
    weight = kernel.reshape(few, stride, few, stride, before, out).permute(5, 0, 2, 1, 3, 4)
    weight = weight.reshape(out, few, few, -1).permute(0, 3, 1, 2)
    return image.permute(0, 3, 1, 2), weight


def profiles(bench: Bench, title: str) -> None:
    """Kernels of a replay by time."""
    from torch.profiler import ProfilerActivity, profile

    device = bench.device
    chosen = [("vector", VECTOR_CASE, "float32"), ("84x84x4", ATARI_CASE, "tf32")]
    for name, case, precision in [("tiny", TINY_SAC, "float32")] if bench.is_tiny else chosen:
        ring = Ring(case, device, 8 if case.obs.images else 0)
        for way in ("graph", "compiled-reuse"):
            learner = updates.team(case, {"precision": precision}, device)
            sac = learner.members[0]
            learn = sac._learn if way == "graph" else split_learn(sac, True, True)
            graph = in_graph(bench, sac, ring, 1, learn)
            value = torch.zeros((), device=device)
            print_kernels(
                f"{title}, SAC {name} {way}",
                lambda graph=graph, value=value: graph(value),
                profile,
                ProfilerActivity,
            )


def print_kernels(title: str, function: Callable[[], Any], profile: Any, activity: Any) -> None:
    for _ in range(3):
        function()
    torch.cuda.synchronize() if torch.cuda.is_available() else None
    kinds = [activity.CUDA] if torch.cuda.is_available() else [activity.CPU]
    with profile(activities=kinds) as measured:
        for _ in range(10):
            function()
        torch.cuda.synchronize() if torch.cuda.is_available() else None
    kernels = [each for each in measured.key_averages()]
    times = sorted(((getattr(k, "self_device_time_total", 0) or 0, k.count, k.key) for k in kernels), reverse=True)
    show(title, {"kernels": sum(c for _, c, _ in times) / 10, "us": sum(t for t, _, _ in times) / 10})
    for total, count, key in times[:22]:
        print(f"      {total / 10:8.1f} us  {count / 10:5.1f} x  {key[:110]}", flush=True)


def sharing(bench: Bench, title: str) -> None:
    """Several learners on one card, each a process that updates SAC on vectors."""
    import subprocess
    import sys

    code = (
        "import sys, time, torch\n"
        "from tests.bench.gpu import experiments as e, updates\n"
        "from tests.bench.gpu.measuring import Bench\n"
        "torch.set_num_threads(1)\n"
        f"bench = Bench({bench.device!r}, time.monotonic() + 60, is_tiny={bench.is_tiny})\n"
        "case = e.TINY_SAC if bench.is_tiny else e.VECTOR_CASE\n"
        "learner = updates.team(case, {}, bench.device)\n"
        "turn = updates.loop(bench, case, learner, 'device')\n"
        "[turn() for _ in range(20)]\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "end, count = time.monotonic() + 2, 0\n"
        "while time.monotonic() < end:\n"
        "    turn(); count += 1\n"
        "    if count % 20 == 0 and bench.is_gpu: torch.cuda.synchronize()\n"
        "print(count / 2)\n"
    )
    for count in (1, 2) if bench.is_tiny else (1, 2, 4, 8):
        started = [
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
        rates = []
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in started:
            rates.append(float(process.communicate()[0].strip()))
        show(title, {"learners": count, "updates/s each": sum(rates) / count, "together": sum(rates)})


EXPERIMENTS |= {"parallel": sac_ways(VECTOR_CASE, "float32", ["streams", "streams 8", "compiled-streams 8"])}
EXPERIMENTS |= {"tf32 vector": sac_ways(VECTOR_CASE, "tf32", ["graph 8", "streams 8"])}
EXPERIMENTS |= {"encoder": encoders, "kernels": profiles, "learners on one card": sharing}
