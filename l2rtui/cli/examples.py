"""Examples and pages at the end of ``l2rtui VERB --help``; tests parse every example and open every page."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "nodes": (
        "l2rtui nodes -o wide",
        "l2rtui nodes 'phortx*' --state cordoned",
        "l2rtui nodes -l nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB -w",
    ),
    "slots": (
        "l2rtui slots --state free",
        "l2rtui slots phortx1/3",
        "l2rtui slots --state free --node 'phortx*' -o name",
        "l2rtui slots --gpu 'free>=2 model=H100 memory>=40G'",
        "l2rtui slots --mine --filter 'gpu<5'",
    ),
    "pods": (
        "l2rtui pods racing-sac/w",
        "l2rtui pods --owner alice,bob --state failing -o wide",
        "l2rtui pods -l l2rtui.io/role=learner -w",
    ),
    "runs": (
        "l2rtui runs --mine -w",
        "l2rtui runs 'racing-*' --state stalled,diverged -o name",
        "l2rtui runs -o json -w",
    ),
    "experiments": (
        "l2rtui experiments 'racing-*'",
        "l2rtui experiments --filter 'stalled>0'",
        "l2rtui experiments -o json -w",
    ),
    "owners": ("l2rtui owners -o wide", "l2rtui owners --filter 'idle_gpus>0'"),
    "new": (
        "l2rtui new my-run --env CartPole-v1 --algorithm ppo",
        "l2rtui new racing --env racing --algorithm sac",
    ),
    "explain": ("l2rtui explain", "l2rtui explain train.sac.actor_lr", "l2rtui explain pod.mounts -o yaml"),
    "plan": (
        "l2rtui plan -t cartpole-ppo",
        "l2rtui plan -f run.yaml",
        "l2rtui plan -f manifests/worker-pods.yaml --seeds 0-11 --on phortx1/0-7,phortx2/0-3 -o yaml",
        "l2rtui plan -f run.yaml --diff",
    ),
    "history": (
        "l2rtui history",
        "l2rtui history 'racing-*' --filter 'best>200'",
        "l2rtui history show racing-sac-s3",
        "l2rtui history --mine --last 100 -o csv",
        "l2rtui history --since-left",
        "l2rtui history export 'racing-*' --to mlflow",
    ),
    "sweep": ("l2rtui sweep cartpole-sweep", "l2rtui sweep cartpole-sweep -o csv > sweep.csv"),
    "diff": ("l2rtui diff racing-sac-s3 racing-sac-s4", "l2rtui diff 7f3a91c0 racing-sac-s4 -o json"),
    "report": ("l2rtui report racing-sac", "l2rtui report racing-sac --out week.html"),
    "launch": (
        "l2rtui launch -t cartpole-ppo --wait",
        "l2rtui launch -f run.yaml --yes",
        "l2rtui launch -f run.yaml --seeds 0-4 --set train.gamma=0.98",
        "l2rtui launch -f run.yaml --seeds 0-11 --on phortx1/0-7,phortx2/0.0-3 --wave 8",
        "l2rtui launch -t night --seeds 0-3",
        "l2rtui launch -f run.yaml --seeds 0-11 --queue --yes",
        "l2rtui launch -f run.yaml --set workers.w.replicas=8 --set train.updates_per_step=0.25",
        "l2rtui launch --like racing-sac-s3 --name again",
    ),
    "relaunch": ("l2rtui relaunch", "l2rtui relaunch racing-sac --on phortx3/4"),
    "reserve": ("l2rtui reserve phortx1/0-3 --for 4h --note 'paper figures'", "l2rtui reserve"),
    "unreserve": ("l2rtui unreserve phortx1/0-3", "l2rtui unreserve --mine --yes"),
    "queue": ("l2rtui queue -w", "l2rtui queue move racing-sac-s7 --to 1", "l2rtui queue cancel racing-sac --yes"),
    "scale": ("l2rtui scale racing-sac/w 6",),
    "kill": ("l2rtui kill racing-sac/w/0", "l2rtui kill racing-sac/w --grace 0 --yes"),
    "destroy": (
        "l2rtui destroy racing-sac",
        "l2rtui destroy experiment/racing-sac --all-matching --yes",
        "l2rtui destroy --all-mine --yes -o json",
    ),
    "leaks": ("l2rtui leaks", "l2rtui leaks --clean --yes"),
    "recover": ("l2rtui recover",),
    "logs": (
        "l2rtui logs racing-sac --tail 20",
        "l2rtui logs racing-sac -f --grep return",
        "l2rtui logs racing-sac/w --since 10m --timestamps",
        "l2rtui logs racing-sac/w/0 --previous --tail 50",
    ),
    "metrics": (
        "l2rtui metrics racing-sac --watch",
        "l2rtui metrics --mine --filter 'return>200'",
        "l2rtui metrics racing-sac-s0 -o json",
        "l2rtui metrics racing-sac --svg curves.svg --mean --smooth",
        "l2rtui metrics racing-sac --csv curves.csv",
        "l2rtui metrics racing-sac --tensorboard",
    ),
    "wait": (
        "l2rtui wait racing-sac --for=done --timeout 12h",
        "l2rtui wait 'racing-sac-s*' --for=learned=200 --any",
        "l2rtui wait racing-sac-s3 --for=gone",
    ),
    "attach": ("l2rtui attach racing-sac/w/0",),
    "exec": ("l2rtui exec racing-sac/w/0 -- nvidia-smi",),
    "describe": ("l2rtui describe racing-sac", "l2rtui describe racing-sac/w/0", "l2rtui describe phortx1"),
    "events": ("l2rtui events", "l2rtui events racing-sac"),
    "port-forward": ("l2rtui port-forward racing-sac/learner/0 6006:6006", "l2rtui port-forward"),
    "simulator": (
        "l2rtui simulator status l2r-reference",
        "l2rtui simulator restart l2r-reference/w/0",
        "l2rtui simulator frame l2r-reference/w/0 --camera CameraBirdsEye",
    ),
    "check": ("l2rtui check", "l2rtui check --context lab"),
    "image": (
        "l2rtui image build --push registry.example/lab/node",
        "l2rtui image build --base registry.example/lab/simulator:5.2",
        "l2rtui image source ./image",
        "l2rtui image ls",
    ),
    "alerts": ("l2rtui alerts test racing.yaml", "l2rtui alerts test racing-s0"),
    "template": ("l2rtui template save night -f run.yaml", "l2rtui template show night"),
    "config": ("l2rtui config show", "l2rtui config check", "l2rtui --config team.toml config check -o json"),
    "secret": (
        "l2rtui secret create wandb --prompt WANDB_API_KEY",
        "l2rtui secret create aws --from-env AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY",
        "l2rtui secret create pull --registry registry.example",
    ),
    "cluster": (
        "l2rtui cluster create -f manifests/cluster.yaml --dry-run",
        "l2rtui cluster scale gpu -f manifests/cluster.yaml --nodes 0",
        "l2rtui cluster delete -f manifests/cluster.yaml",
        "l2rtui cluster prepare --user anna --user ben",
    ),
    "artifacts": (
        "l2rtui artifacts ls racing-sac",
        "l2rtui artifacts get racing-sac --to ./best",
        "l2rtui artifacts ls s3://lab/results",
        "l2rtui artifacts get s3://lab/results/racing-sac --to ./best",
        "l2rtui artifacts compare s3://lab/results/racing-sac-s0 s3://lab/results/racing-sac-s1",
    ),
    "results": (
        "l2rtui results ls",
        "l2rtui results rm racing-sac-1f2e3d4c",
        "l2rtui results prune --older 30d --keep 1 --yes",
    ),
    "volume": (
        "l2rtui volume create data --size 50Gi --access RWX",
        "l2rtui volume files data:checkpoints",
        "l2rtui volume get data:checkpoints ./checkpoints",
        "l2rtui volume put ./tracks data:tracks",
    ),
    "serve": ("l2rtui serve", "l2rtui serve --port 8080"),
    "service": ("l2rtui service install",),
    "schema": ("l2rtui schema > spec.schema.json",),
    "completion": ("l2rtui completion bash > ~/.local/share/bash-completion/completions/l2rtui",),
}


PAGES: Final[dict[str, str]] = {
    **dict.fromkeys(("nodes", "pods", "runs", "wait", "logs", "attach", "exec", "port-forward"), "commands.md"),
    **dict.fromkeys(("slots", "owners", "reserve", "unreserve", "queue"), "guides/reserve-and-share.md"),
    **dict.fromkeys(("plan", "launch"), "tutorials/laptop.md"),
    **dict.fromkeys(("scale", "kill", "destroy", "leaks"), "guides/stop.md"),
    **dict.fromkeys(("experiments", "report", "metrics"), "guides/seeds-curves-report.md"),
    **dict.fromkeys(("history", "diff", "relaunch", "results"), "guides/resume-and-reproduce.md"),
    **dict.fromkeys(("describe", "events", "check"), "guides/pod-fails.md"),
    **dict.fromkeys(("volume", "artifacts"), "guides/data.md"),
    **dict.fromkeys(("explain", "schema"), "settings.md"),
    "new": "guides/own-environment.md",
    "sweep": "guides/sweep.md",
    "simulator": "guides/simulators.md",
    "alerts": "guides/limits-and-alerts.md",
    "template": "kinds.md",
    "config": "configuration.md",
    "image": "guides/images.md",
    "secret": "secrets.md",
    "cluster": "aws.md",
    "serve": "serve.md",
    "completion": "dist.md",
}
"""The page of docs/ that a verb's help names, next to its section of docs/verbs.md."""


def epilog(verb: str) -> str:
    """Return the examples of a verb's help, and its pages."""
    examples = [f"  {line}" for line in EXAMPLES.get(verb, ())]
    pages = [f"docs/verbs.md#{verb}", *([f"docs/{PAGES[verb]}"] if verb in PAGES else ())]
    return "\n".join((*(["examples:", *examples, ""] if examples else ()), f"docs: {', '.join(pages)}"))
