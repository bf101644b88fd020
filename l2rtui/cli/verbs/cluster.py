"""cluster: create, inspect, scale and delete an EKS cluster, with an estimate of its cost first.

``addons`` and ``prepare`` act on the cluster of the kubeconfig's context.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from l2rtui.backends.kubernetes.labels import CLAIMS_NAMESPACE
from l2rtui.cli.session import Session
from l2rtui.cloud.aws import clusters, eks_login, prices
from l2rtui.cloud.aws.clients import Cloud
from l2rtui.cloud.aws.cluster_spec import ClusterSpec, load_cluster
from l2rtui.cloud.aws.clusters import ClusterReceipt
from l2rtui.cloud.aws.reservations import check_zones, find_reservations
from l2rtui.cloud.aws.waiters import ClusterChange
from l2rtui.domain.quantity import counted
from l2rtui.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEFT_BEHIND, UsageError
from l2rtui.services import addons
from l2rtui.services.history import journal
from l2rtui.tables.column import Column, View

STEPS = View("step", (Column("STEP", "step"), Column("WHAT", "what")))
GROUPS = View(
    "group",
    (
        Column("GROUP", "group"),
        Column("STATUS", "status"),
        Column("NODES", "nodes", is_number=True),
        Column("MIN", "min", is_number=True),
        Column("MAX", "max", is_number=True),
        Column("MACHINES", lambda document: ", ".join(document["instance_types"])),
        Column("PAID", lambda document: document["capacity_type"].lower().replace("_", " "), is_wide=True),
        Column("ISSUES", lambda document: "; ".join(document["issues"])),
    ),
)
RECEIPT = View(
    "cluster",
    (
        Column("CLUSTER", "cluster"),
        Column("LEFT", "left", is_number=True),
        Column("DOLLARS A MONTH", "dollars_a_month", is_number=True),
        Column(
            "WHAT", lambda document: "; ".join(f"{item['kind']} {item['id']}" for item in document["leftovers"])
        ),
    ),
)
ADDONS = View(
    "object",
    (
        Column("ADD-ON", "addon"),
        Column("VERSION", "version"),
        Column("OBJECT", "object"),
        Column("OUTCOME", "outcome"),
        Column("IMAGES", lambda document: ", ".join(document["images"]), is_wide=True),
    ),
)
_GOES_ON = (
    "the parts created so far exist and cost money. The same command continues; `cluster delete` removes them."
)


async def run_cluster(session: Session) -> int:
    """Run the action that the first argument names."""
    actions = {
        "create": _create,
        "status": _status,
        "delete": _delete,
        "kubeconfig": _kubeconfig,
        "scale": _scale,
        "addons": _addons,
        "prepare": _prepare,
        "token": _token,
    }
    return await actions[session.args.action](session)


async def _create(session: Session) -> int:
    args = session.args
    spec = _spec(session)
    cloud = Cloud(spec.region, args.profile)
    has_files = not args.no_efs
    if not args.dry_run:
        session.require_change("cluster create")
    reservations = await find_reservations(cloud, spec)
    spec = await clusters.with_zones(cloud, spec, {reservation.zone for reservation in reservations.values()})
    check_zones(spec, reservations)
    if has_files:
        await clusters.check_files(cloud, spec)
    cost = await _estimate(session, spec)
    steps = clusters.steps_of(spec, has_files=has_files, reservations=reservations)
    if args.dry_run:
        await _show_plan(session, spec, steps, cost)
        return EXIT_DONE
    for step, what in steps:
        session.talk.say(f"  {step}: {what}")
    session.talk.say(f"It costs {cost.sentence}.")
    if not session.confirm(lambda: f"Create the cluster {spec.name} in {spec.region}?"):
        return EXIT_FAILED
    with session.interruption(_GOES_ON):
        await clusters.create(_change(session, cloud), spec, has_files=has_files)
        context = await _write_kubeconfig(session, cloud, spec.name)
        journal.record("cluster create", spec.name, "done", region=spec.region)
        if not args.no_addons:
            await _apply_addons(session, context, spec.file_system if has_files else "")
    return await _status(session)


async def _estimate(session: Session, spec: ClusterSpec) -> prices.Estimate:
    cloud = prices.price_cloud(spec.region, session.args.profile)
    listed = await prices.read_prices(cloud, spec.region, prices.priced_types(spec))
    return prices.estimate(spec, listed=listed)


async def _show_plan(
    session: Session, spec: ClusterSpec, steps: tuple[tuple[str, str], ...], cost: prices.Estimate
) -> None:
    documents = [{"step": step, "what": what} for step, what in steps]
    images = [] if session.args.no_addons else await addons.resolve_images()
    if _is_data(session):
        plan = {"cluster": spec.name, "region": spec.region, "steps": documents, "cost": _bill(cost)}
        session.out.dump(plan | {"addon_images": [_image_document(image) for image in images]})
        return
    session.out.show_all(STEPS, documents)
    for image in images:
        session.talk.say(f"  {image.sentence}")
    for line in cost.lines:
        price = "unknown" if line.dollars_an_hour is None else f"${line.dollars_an_hour:.3f}"
        session.talk.say(f"  {line.what}: {price} an hour ({line.source})")
    session.talk.say(f"It would cost {cost.sentence}. Nothing was created.")


def _bill(cost: prices.Estimate) -> dict[str, Any]:
    lines = [
        {"what": line.what, "dollars_an_hour": line.dollars_an_hour, "source": line.source} for line in cost.lines
    ]
    bill = {"dollars_an_hour": round(cost.dollars_an_hour, 4), "unknown": list(cost.unknown), "lines": lines}
    bill |= {"noted": prices.NOTED, "of": prices.REGIONS[0]}
    return bill | {"read": list(cost.listed), "failure": cost.failure}


def _image_document(image: addons.AddonImage) -> dict[str, Any]:
    return {"addon": image.addon, "image": image.name, "digest": image.digest, "reason": image.reason}


async def _status(session: Session) -> int:
    name, cloud = _named(session)
    status = await clusters.status(cloud, name)
    if _is_data(session):
        session.out.dump(status)
        return EXIT_DONE
    made = ", ".join(f"{part} {state.lower()}" for part, state in status["stacks"].items() if state) or "no stacks"
    summary = f"{status['status'].lower()}, Kubernetes {status['version']}" if status["status"] else "not there"
    session.talk.say(
        f"{name} in {status['region']}: {summary}; {made}; "
        f"file system {status['file_system'] or status['existing_file_system'] or 'none'}"
    )
    session.out.show_all(GROUPS, status["groups"])
    return EXIT_DONE


async def _delete(session: Session) -> int:
    args = session.args
    name, cloud = _named(session)
    if args.dry_run:
        session.out.dump(await clusters.status(cloud, name))
        return EXIT_DONE
    session.require_change("cluster delete")
    status = await clusters.status(cloud, name)
    files = status["file_system"]
    what = f", with the file system {files} and all that is in it" if files and not args.keep_efs else ""
    if existing := status["existing_file_system"]:
        what += f" (the file system {existing} stays)"
    if not session.confirm(lambda: f"Delete the cluster {name} in {status['region']}{what}?", name):
        return EXIT_FAILED
    with session.interruption("the rest still exists and costs money. The same command continues."):
        receipt = await clusters.delete(_change(session, cloud), name, keep_files=args.keep_efs)
    outcome = "left" if receipt.left else "done"
    journal.record("cluster delete", name, outcome, left=[leftover.id for leftover in receipt.left])
    if not receipt.left:
        eks_login.remove_entry(_path(session), name, status["endpoint"])
    session.talk.say(f"{receipt.sentence}.")
    session.out.show_one(RECEIPT, _receipt_document(receipt))
    return EXIT_LEFT_BEHIND if receipt.left else EXIT_DONE


def _receipt_document(receipt: ClusterReceipt) -> dict[str, Any]:
    def documents(left: Any) -> list[dict[str, Any]]:
        return [
            {"kind": item.kind, "id": item.id, "detail": item.detail, "dollars_a_month": item.dollars_a_month}
            for item in left
        ]

    return {
        "cluster": receipt.cluster,
        "left": len(receipt.left),
        "leftovers": documents(receipt.left),
        "kept": documents(receipt.retained),
        "dollars_a_month": round(receipt.dollars_a_month, 2),
    }


async def _scale(session: Session) -> int:
    args = session.args
    session.require_change("cluster scale")
    name, cloud = _named(session)
    spec = _spec(session) if args.file else None
    wished = {group.name: group for group in spec.groups} if spec else {}
    groups = {group["group"]: group for group in (await clusters.status(cloud, name))["groups"]}
    chosen = [args.group] if args.group else list(groups)
    if args.nodes is None and not all(group in wished for group in chosen):
        raise UsageError("cluster scale needs --nodes, or a file that names the group.", "Write --nodes 0 to stop.")
    if args.nodes is not None and args.nodes < 0:
        raise UsageError(f"--nodes {args.nodes}: write a whole number from 0 up.")
    nodes = {}
    for group in chosen:
        wish = wished.get(group)
        count = wish.desired if args.nodes is None and wish else args.nodes
        nodes[group] = (count, wish.minimum if wish else (groups.get(group, {}).get("min") or 0))
    if not session.confirm(
        lambda: f"Give {', '.join(f'{group} ' + counted(count, 'node') for group, (count, _) in nodes.items())}?"
    ):
        return EXIT_FAILED
    await clusters.scale(_change(session, cloud), name, nodes)
    journal.record("cluster scale", name, "done", nodes={group: count for group, (count, _) in nodes.items()})
    return await _status(session)


async def _kubeconfig(session: Session) -> int:
    if session.settings.readonly:  # otherwise it does not ask, since it removes nothing
        session.require_change("cluster kubeconfig")
    name, cloud = _named(session)
    await _write_kubeconfig(session, cloud, name)
    return EXIT_DONE


async def _write_kubeconfig(session: Session, cloud: Cloud, name: str) -> str:
    path = _path(session)
    cluster = await clusters.require(cloud, name)
    context = eks_login.write_entry(path, cluster, await cloud.region(), session.args.profile)
    session.talk.say(f"the context {context} is in {path}, and is the current one")
    return context


async def _addons(session: Session) -> int:
    """Apply the add-ons to the cluster of the current context, on any provider."""
    if not session.args.dry_run:
        session.require_change("cluster addons")
        names = ", ".join(dict.fromkeys(addon for addon, _ in addons.read_addons()))
        where = f"the context {session.args.context}" if session.args.context else "the current context"
        if not session.confirm(lambda: f"Apply {names} to {where}?"):
            return EXIT_FAILED
    files = _spec(session).file_system if session.args.file else ""
    return await _apply_addons(session, session.args.context or "", files)


async def _apply_addons(session: Session, context: str, file_system: str) -> int:
    documents = []
    path = str(_path(session)) if session.args.kubeconfig else None
    images = await addons.resolve_images()
    for image in images:
        session.talk.progress(image.sentence)
    steps = addons.apply_addons(context, path, dry_run=session.args.dry_run, images=images, file_system=file_system)
    async with aclosing(steps) as applied:
        async for result in applied:
            session.talk.progress(f"{result.addon} {result.version}: {result.object} {result.outcome}")
            document = {key: getattr(result, key) for key in ("addon", "version", "object", "outcome")}
            documents.append(document | {"images": list(result.images)})
    if session.args.action == "addons":
        session.out.show_all(ADDONS, documents)
    return EXIT_DONE


async def _prepare(session: Session) -> int:
    """Make the namespace in which all users claim slots, in the cluster of the current context."""
    args = session.args
    users = [name for text in args.user for name in text.split(",") if name]
    namespace = session.settings.claims_namespace or CLAIMS_NAMESPACE
    if not args.dry_run:
        session.require_change("cluster prepare")
        where = f"the context {args.context}" if args.context else "the current context"
        who = ", ".join(users) or "everybody who can log in"
        question = f"Make the namespace {namespace} on {where}, in which {who} may claim slots?"
        if not session.confirm(lambda: question):
            return EXIT_FAILED
    path = str(_path(session)) if args.kubeconfig else None
    steps = addons.prepare_claims(args.context or "", path, namespace=namespace, users=users, dry_run=args.dry_run)
    async with aclosing(steps) as applied:
        documents = [
            {"addon": item.addon, "version": "", "object": item.object, "outcome": item.outcome, "images": []}
            async for item in applied
        ]
    session.out.show_all(ADDONS, documents)
    return EXIT_DONE


async def _token(session: Session) -> int:
    """Print an ExecCredential, as kubectl expects from its credential plugins."""
    import asyncio

    from l2rtui.cli.output import to_json
    from l2rtui.cloud.aws.eks_login import sign_eks_token

    args = session.args
    if not args.name:
        raise UsageError("cluster token needs --name.", "kubectl calls it; see `l2rtui cluster kubeconfig`.")
    token, expires = await asyncio.to_thread(sign_eks_token, args.name, args.region, args.profile)
    moment = datetime.fromtimestamp(max(expires, time.time()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": token, "expirationTimestamp": moment},
    }
    session.out.line(to_json(document, indent=None))
    return EXIT_DONE


# --- shared helpers -------------------------------------------------------------------------------------------


def _change(session: Session, cloud: Cloud) -> ClusterChange:
    return ClusterChange(cloud, lambda item: session.talk.progress(f"{item.step}: {item.text}"))


def _spec(session: Session) -> ClusterSpec:
    if not session.args.file:
        action = session.args.action
        raise UsageError(f"cluster {action} needs -f FILE.", "An example is manifests/cluster.yaml.")
    return load_cluster(session.args.file)


def _named(session: Session) -> tuple[str, Cloud]:
    """Return the cluster's name and cloud, from the file or the arguments."""
    args = session.args
    if args.file:
        spec = _spec(session)
        return spec.name, Cloud(spec.region, args.profile)
    if not args.name:
        raise UsageError(f"cluster {args.action} needs -f FILE, or --name.")
    return args.name, Cloud(args.region, args.profile)


def _path(session: Session) -> Path:
    return Path(session.args.kubeconfig) if session.args.kubeconfig else eks_login.default_path()


def _is_data(session: Session) -> bool:
    return session.out.form in ("json", "yaml")
