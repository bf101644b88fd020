"""Arguments of the verbs for resources around runs: images, secrets and clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from l2rtui.cli.argument_parser import Parser

ARTIFACT_ACTIONS = ("ls", "get", "compare")
RESULT_ACTIONS = ("ls", "rm", "prune")
VOLUME_ACTIONS = ("ls", "create", "delete", "files", "get", "put")
QUEUE_ACTIONS = ("ls", "cancel", "move")
IMAGE_ACTIONS = ("build", "push", "login", "ls", "source")
SECRET_ACTIONS = ("create", "ls", "delete")
CLUSTER_ACTIONS = ("create", "status", "delete", "kubeconfig", "scale", "addons", "prepare", "token")


def queue(parser: Parser) -> None:
    """Add the words of ``queue``."""
    parser.option("action", choices=QUEUE_ACTIONS, nargs="?", default="ls", help="what to do; ls when left out")
    parser.option("names", nargs="*", metavar="RUN", help="cancel: runs, or experiment/NAME; move: one run")
    parser.option("--to", type=int, metavar="N", help="move: position among the runs of its owner, 1 is the first")
    parser.flag("--watch", "list now and at each change", short="-w")
    parser.flag("--admin", "also what belongs to other people")
    all_matching(parser)
    parser.flag("--yes", "do not ask", short="-y")


def all_matching(parser: Parser) -> None:
    """Add the option that lets ``--yes`` change more runs than were named."""
    parser.flag("--all-matching", "with --yes: allow a name that matches several runs")


def alerts(parser: Parser) -> None:
    """Add the words of ``alerts``."""
    parser.option("action", choices=("test",), help="what to do")
    parser.option("target", metavar="FILE|RUN", help="spec file, sent from here; or run, sent by its learner")


def config(parser: Parser) -> None:
    """Add the words of ``config``."""
    parser.option(
        "action", choices=("show", "check"), nargs="?", default="check", help="what to do; check when left out"
    )
    parser.hint = "Settings are written in the file that `l2rtui config` names, or as L2RTUI_ variables."


def service(parser: Parser) -> None:
    """Add the words of ``service``."""
    parser.option("action", choices=("install", "remove"), help="what to do")


def template(parser: Parser) -> None:
    """Add the words of ``template``."""
    parser.option("action", choices=("ls", "show", "save", "delete"), nargs="?", default="ls", help="what to do")
    parser.optional("name", "NAME", "the template")
    parser.option("-f", "--file", default="", metavar="SPEC", help="for save: spec file to copy")
    parser.flag("--replace", "for save: over a template of this name")


def new(parser: Parser) -> None:
    """Add the words of ``new``."""
    parser.hint = "Write `l2rtui new NAME --env ID --algorithm ppo`."
    parser.option("name", metavar="NAME", help="name of the run")
    parser.option("--env", default="CartPole-v1", metavar="ID", help="environment (default CartPole-v1)")
    parser.option("--algorithm", default="ppo", metavar="NAME", help="method that learns (default ppo)")
    parser.text("--to", "FILE", "file to write (default NAME.yaml)")
    parser.flag("--replace", "over a file that is there")


def image(parser: Parser) -> None:
    """Add the words of ``image``."""
    parser.option("action", choices=IMAGE_ACTIONS, help="what to do")
    parser.optional(
        "name",
        "NAME",
        "image, such as registry.example/lab/node (default of build: l2rtui-node); for login: the registry; for "
        "ls: a repository of a registry (default: images built here); for source: a new folder for Dockerfiles, "
        "pins and runtime",
    )
    parser.text("--source", "DIR", "build: tree with docker/ (default: this one, or the installed package)")
    parser.text("--base", "IMAGE", "build: base image, such as one with a simulator")
    parser.option("--tag", default="", help="tag instead of the git revision")
    parser.repeated("--build-arg", "K=V", "build: argument of the Dockerfiles")
    parser.text("--network", "MODE", "build: network of its commands, such as host")
    parser.flag("--push", "build: push it too")
    parser.text("--username", "USER", "login: who you are there; asked for otherwise")
    parser.flag("--password-stdin", "login: read the password from standard input, do not ask")


def secret(parser: Parser) -> None:
    """Add the words of ``secret``."""
    parser.option("action", choices=SECRET_ACTIONS, help="what to do")
    parser.optional("name", "NAME", "name of the secret")
    parser.repeated("--from-env", "VAR", "create: take this variable; may be repeated")
    parser.repeated("--prompt", "KEY", "create: ask for this key, without an echo")
    parser.text(
        "--registry",
        "HOST",
        "create: login of a registry, for pulls; from `l2rtui image login`, otherwise asked for",
    )
    parser.text("--username", "USER", "create --registry: who you are there")
    parser.flag("--replace", "create: in place of the secret that has this name")
    parser.flag("--yes", "do not ask", short="-y")


def cluster(parser: Parser) -> None:
    """Add the words of ``cluster``."""
    parser.option(
        "action",
        choices=CLUSTER_ACTIONS,
        help="what to do; prepare is for every cluster: it makes the namespace in which all claim slots",
    )
    parser.optional("group", "GROUP", "scale: the node group (default: all)")
    parser.option("-f", "--file", default="", metavar="FILE", help="eksctl's ClusterConfig, in YAML")
    parser.option("--name", default="", help="the cluster, without a file")
    parser.option("--region", default="", help="its region, without a file")
    parser.option("--profile", default="", help="profile of the AWS configuration")
    parser.flag("--dry-run", "create, delete, addons, prepare: show (steps, prices, images), do nothing")
    parser.option(
        "--nodes", type=int, default=None, metavar="N", help="scale: so many nodes; 0 stops paying for them"
    )
    parser.flag("--no-efs", "create: without a shared file system")
    parser.flag("--keep-efs", "delete: keep the file system that create made (one that existed always stays)")
    parser.flag("--no-addons", "create: apply no manifests from manifests/addons")
    parser.repeated("--user", "NAME", "prepare: who may claim slots; may be repeated (default: whoever can log in)")
    parser.text("--kubeconfig", "FILE", "kubeconfig: the file to write to")
    parser.flag("--yes", "do not ask", short="-y")


def artifacts(parser: Parser) -> None:
    """Add the words of ``artifacts``."""
    parser.option("action", choices=ARTIFACT_ACTIONS, help="what to do")
    parser.option(
        "place",
        metavar="PLACE",
        help="s3://BUCKET/PREFIX, a folder, or a run; for get and compare also one checkpoint: PLACE/NAME",
    )
    parser.optional("other", "PLACE", "compare: the second one")
    parser.text("--name", "NAME", "which checkpoint (default: the newest complete one)")
    parser.text("--to", "DIR", "get: folder to copy it to (default: this one)")


def results(parser: Parser) -> None:
    """Add the words of ``results``."""
    from l2rtui.cli.parser_selection import size, span, whole_number

    parser.option("action", choices=RESULT_ACTIONS, nargs="?", default="ls", help="what to do; ls when left out")
    parser.option("names", nargs="*", metavar="ID", help="ids printed by ls, or runs; prune: only these runs")
    parser.option(
        "--older", type=span, default=None, metavar="SPAN", help="prune: results older than this, such as 30d"
    )
    parser.option(
        "--keep", type=whole_number, default=None, metavar="N", help="prune: the newest N of each run stay"
    )
    parser.option(
        "--size",
        type=size,
        default=None,
        metavar="SIZE",
        help="prune: only the newest stay that take up to SIZE together, such as 10Gi",
    )
    parser.flag("--yes", "do not ask", short="-y")


def volume(parser: Parser) -> None:
    """Add the words of ``volume``."""
    parser.option("action", choices=VOLUME_ACTIONS, help="what to do; files looks into one")
    parser.optional("source", "NAME[:PATH]", "volume, or a path in it; for put a local path")
    parser.optional("target", "TO", "get: local path; put: NAME:PATH")
    parser.text("--size", "SIZE", "create: such as 50Gi")
    parser.text("--storage-class", "CLASS", "create: storage class (default: the cluster's)")
    parser.option(
        "--access",
        default="RWO",
        metavar="MODES",
        help="create: RWO (one node), RWX (many), ROX, RWOP; with commas (default %(default)s)",
    )
    parser.text("--image", "NAME", "image of the pod that carries files")
    parser.flag("--yes", "do not ask", short="-y")
