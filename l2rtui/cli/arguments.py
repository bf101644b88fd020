"""The words of the verbs for what lies around runs: images, secrets and clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from l2rtui.cli.parser import Parser

ARTIFACT_ACTIONS = ("ls", "get", "compare")
VOLUME_ACTIONS = ("ls", "create", "delete", "files", "get", "put")
IMAGE_ACTIONS = ("build", "push", "login", "ls")
SECRET_ACTIONS = ("create", "ls", "delete")
CLUSTER_ACTIONS = ("create", "status", "delete", "kubeconfig", "scale", "addons", "token")


def image(parser: Parser) -> None:
    """Add the words of ``image``."""
    parser.option("action", choices=IMAGE_ACTIONS, help="what to do")
    parser.option(
        "name",
        nargs="?",
        default="",
        metavar="NAME",
        help="image, such as registry.example/lab/node; for login: the registry (default of build: l2rtui-node)",
    )
    parser.option("--source", default="", metavar="DIR", help="build: source tree with docker/ (default: this one)")
    parser.option(
        "--base", default="", metavar="IMAGE", help="build: image to stand on, such as one with a simulator"
    )
    parser.option("--tag", default="", help="tag in place of the git revision")
    parser.option(
        "--build-arg", action="append", default=[], metavar="K=V", help="build: argument of the Dockerfiles"
    )
    parser.option("--network", default="", metavar="MODE", help="build: network of its commands, such as host")
    parser.option("--push", action="store_true", help="build: push it too")
    parser.option("--username", default="", metavar="USER", help="login: who you are there; asked for otherwise")
    parser.option(
        "--password-stdin", action="store_true", help="login: read the password from standard input, do not ask"
    )


def secret(parser: Parser) -> None:
    """Add the words of ``secret``."""
    parser.option("action", choices=SECRET_ACTIONS, help="what to do")
    parser.option("name", nargs="?", default="", metavar="NAME", help="name of the secret")
    parser.option(
        "--from-env", action="append", default=[], metavar="VAR", help="create: take this variable; may be repeated"
    )
    parser.option(
        "--prompt", action="append", default=[], metavar="KEY", help="create: ask for this key, without an echo"
    )
    parser.option(
        "--registry",
        default="",
        metavar="HOST",
        help="create: the login of a registry, for pods to pull with; that of `l2rtui image login`, else asked for",
    )
    parser.option("--username", default="", metavar="USER", help="create --registry: who you are there")
    parser.option("--replace", action="store_true", help="create: in place of the secret that has this name")
    parser.option("-y", "--yes", action="store_true", help="do not ask")


def cluster(parser: Parser) -> None:
    """Add the words of ``cluster``."""
    parser.option("action", choices=CLUSTER_ACTIONS, help="what to do")
    parser.option("group", nargs="?", default="", metavar="GROUP", help="scale: the node group (default: all)")
    parser.option("-f", "--file", default="", metavar="FILE", help="eksctl's ClusterConfig, in YAML")
    parser.option("--name", default="", help="the cluster, where there is no file")
    parser.option("--region", default="", help="its region, where there is no file")
    parser.option("--profile", default="", help="profile of the AWS configuration")
    parser.option("--dry-run", action="store_true", help="create, delete, addons: show, do nothing")
    parser.option(
        "--nodes", type=int, default=None, metavar="N", help="scale: so many nodes; 0 stops paying for them"
    )
    parser.option("--no-efs", action="store_true", help="create: without a shared file system")
    parser.option("--keep-efs", action="store_true", help="delete: keep the shared file system and what is in it")
    parser.option("--no-addons", action="store_true", help="create: apply no manifests from manifests/addons")
    parser.option("--kubeconfig", default="", metavar="FILE", help="kubeconfig: the file to write to")
    parser.option("-y", "--yes", action="store_true", help="do not ask")


def artifacts(parser: Parser) -> None:
    """Add the words of ``artifacts``."""
    parser.option("action", choices=ARTIFACT_ACTIONS, help="what to do")
    parser.option(
        "place",
        metavar="PLACE",
        help="s3://BUCKET/PREFIX, a folder, or a run; for get and compare also one checkpoint: PLACE/NAME",
    )
    parser.option("other", nargs="?", default="", metavar="PLACE", help="compare: the second one")
    parser.option("--name", default="", metavar="NAME", help="which checkpoint; the newest whole one otherwise")
    parser.option("--to", default="", metavar="DIR", help="get: folder to copy it to (default: this one)")


def volume(parser: Parser) -> None:
    """Add the words of ``volume``."""
    parser.option("action", choices=VOLUME_ACTIONS, help="what to do; files looks into one")
    parser.option(
        "source", nargs="?", default="", metavar="NAME[:PATH]", help="volume, or a path in it; for put a local path"
    )
    parser.option("target", nargs="?", default="", metavar="TO", help="get: local path; put: NAME:PATH")
    parser.option("--size", default="", metavar="SIZE", help="create: such as 50Gi")
    parser.option("--storage-class", default="", metavar="CLASS", help="create: that of the cluster when left out")
    parser.option(
        "--access",
        default="RWO",
        metavar="MODES",
        help="create: RWO (one node), RWX (many), ROX, RWOP; with commas (default %(default)s)",
    )
    parser.option("--image", default="", metavar="NAME", help="image of the pod that carries files")
    parser.option("-y", "--yes", action="store_true", help="do not ask")
