"""Elastic jobs: torch's public launcher with our own rendezvous; nodes join and leave during training.

``rendezvous`` hosts the rendezvous, in its memory or in an etcd; ``node`` is one node of a job.
`runtime.rendezvous` decides who trains in which round.

Here are the options of `l2r-runtime rendezvous` and `l2r-runtime elastic`. The commands' code is imported when they
start, so that other commands do not wait for torch.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import Final

from runtime.base import contract
from runtime.base.cli_options import Commands, add_command
from runtime.base.errors import SetupError
from runtime.base.signals import Stop

BACKENDS: Final = ("c10d", "etcd-v2")
_RENDEZVOUS: Final = """\
host the meeting point of an elastic job
Host the meeting point of an elastic job's nodes.

examples:
  L2R_ENDPOINT=tcp://127.0.0.1:29400 L2R_RUN_ID=try l2r-runtime rendezvous
  L2R_ENDPOINT=ipc:///tmp/try l2r-runtime rendezvous --backend etcd-v2

It listens where L2R_PEERS says for --set and L2R_INDEX, or else at L2R_ENDPOINT; for ipc:///DIR at the Unix socket
DIR/nodes.sock. Nodes prove by the run's token (L2R_TOKEN_FILE) that they belong to it, and all that they say is
encrypted. It ends with 0 a moment after a node has said that the
training is done, with 1 when a node has given it up. Started anew it has forgotten everything: the nodes meet
again, and training continues from the newest state.
"""
_ELASTIC: Final = """\
train as one node of an elastic job
Run a program on this node, together with the other nodes of an elastic job.

examples:
  export L2R_ENDPOINT=tcp://127.0.0.1:29400 L2R_RUN_ID=try L2R_DIR=/tmp/try
  l2r-runtime rendezvous & l2r-runtime fetch digits
  l2r-runtime elastic --nodes 1:4 & l2r-runtime elastic --nodes 1:4
  l2r-runtime elastic --nodes 2:8 --nproc-per-node 4 -- train.py --epochs 3

The program runs as torchrun runs it (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, …; L2R_ROUND is the round) and is
started anew in each round: when a node has come, has left or died. It must keep snapshots, one on each node in
L2R_NODE_DIR, and go on from the newest of all nodes. Without a program, `l2r-runtime classify train` runs, which
does that. NCCL takes one process for each GPU.
Exit codes: 0 trained to the end, also by others; 1 given up; 2 wrong use; 143 left the training (SIGTERM).
"""


def add_parser(commands: Commands) -> None:
    """Add both commands and their options."""
    add = add_command(commands, "rendezvous", _RENDEZVOUS, start_rendezvous).add_argument
    add(
        "--backend",
        choices=BACKENDS,
        default="c10d",
        help="where the nodes' state is held: in this process, or in an etcd (%(default)s)",
    )
    add("--set", default="", metavar="NAME", help="name of this set in L2R_PEERS (L2R_SET)")
    add("--port", type=int, default=0, help="listen at this TCP port instead")
    add("--until", default="", metavar="STEP", help="end with 0 when this step of the run is done, too")

    usage = "l2r-runtime elastic [--nodes MIN:MAX] [--nproc-per-node N] [options] [-- PROGRAM ARGUMENTS...]"
    add = add_command(commands, "elastic", _ELASTIC, start_node, usage).add_argument
    add("--nodes", default="1:1", metavar="MIN:MAX", help="fewest and most nodes that train (%(default)s)")
    add(
        "--nproc-per-node",
        default="auto",
        metavar="N",
        help="processes of each node (auto: one for each GPU, or 1)",
    )
    add("--backend", choices=BACKENDS, default="c10d", help="of the rendezvous (%(default)s)")
    add("--rendezvous", default="", metavar="SET", help="set of L2R_PEERS that is the rendezvous (L2R_ENDPOINT)")
    add("--id", default="", metavar="ID", help="of the rendezvous; nodes of one job have the same (L2R_RUN_ID)")
    add("--max-restarts", type=int, default=3, help="failures of the program with the same nodes (%(default)s)")
    add("--gather-seconds", type=int, default=3, help="how long the fewest nodes wait for more (%(default)s)")


def start_rendezvous(options: argparse.Namespace, stop: Stop) -> int:
    """Host the rendezvous and return the exit code."""
    from runtime.base.metrics import Console
    from runtime.jobs.elastic import rendezvous

    return rendezvous.host(options.backend, options.set, options.port, options.until, os.environ, stop, Console())


def start_node(options: argparse.Namespace, stop: Stop) -> int:
    """Train as a node and return the exit code."""
    from runtime.base.metrics import Console
    from runtime.jobs.elastic.plan import ElasticPlan

    nodes = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", options.nodes)
    least, most = (int(nodes[1]), int(nodes[2] or nodes[1])) if nodes else (0, 0)
    if not 1 <= least <= most:
        raise SetupError(f"--nodes is {options.nodes!r}; it must be MIN:MAX with 1 <= MIN <= MAX, for example 1:4")
    processes = options.nproc_per_node
    if processes != "auto" and not re.fullmatch(r"[1-9]\d{0,3}", processes):
        raise SetupError(f"--nproc-per-node must be at least 1, or auto; it is {processes!r}")
    if options.gather_seconds < 1:
        raise SetupError("--gather-seconds must be at least 1")
    plan = ElasticPlan.from_environment(
        os.environ,
        backend=options.backend,
        set_name=options.rendezvous,
        run_id=options.id,
        min_nodes=least,
        max_nodes=most,
        processes=None if processes == "auto" else int(processes),
        max_restarts=max(0, options.max_restarts),
        gather_seconds=options.gather_seconds,
        command=tuple(options.command) or ("l2r-runtime", "classify", "train"),
    )
    if plan.is_done():
        Console().say("the training was finished before this node came")
        return contract.EXIT_DONE

    from runtime.jobs.elastic import node

    return node.run(plan, stop, Console())
