"""GPUs allocated by resource claims: which GPU, how many of its slots, and unknown cases."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from l2rtui.backends.kubernetes.api.structs import NodeStruct, PodStruct
from l2rtui.backends.kubernetes.state.dra_allocations import ResourceClaimStruct, ResourceSliceStruct
from l2rtui.backends.kubernetes.state.joiner import Joiner
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.backends.kubernetes.state.visibility import find_visibility, scopes
from l2rtui.domain.change import PodGone, apply
from l2rtui.domain.ledger import DeviceUsage, SlotState
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT

UUIDS = [f"GPU-0000000{number}-aaaa-bbbb-cccc-dddddddddddd" for number in range(4)]


def made(raw, kind):
    return msgspec.json.decode(msgspec.json.encode(raw), type=kind)


def node(**annotations):
    meta = {"name": "n", "annotations": annotations}
    status = {"capacity": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return made({"metadata": meta, "status": status}, NodeStruct)


def pod(name, claim="", template="", **more):
    uses = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    status = {"phase": "Running"}
    if template and claim:
        status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": claim}]
        uses = {"resourceClaimTemplateName": template}
    spec = {"nodeName": "n", "containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu", **uses}]}
    meta = {"name": name, "namespace": "ml", "uid": f"u-{name}", **more}
    return made({"metadata": meta, "spec": spec, "status": status}, PodStruct)


def claim(name, *devices, users=1, driver="gpu.nvidia.com"):
    results = [{"request": "gpu", "driver": driver, "pool": "n", "device": device} for device in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    status["reservedFor"] = [{"resource": "pods", "name": f"p{number}"} for number in range(users)]
    return made({"metadata": {"name": name, "namespace": "ml"}, "status": status}, ResourceClaimStruct)


def devices(is_old=False, **attributes):
    result = {"attributes": attributes}
    item = {"name": "gpu-0", **({"basic": result} if is_old else result)}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "n"}, "devices": [item]}
    return made({"metadata": {"name": "slice"}, "spec": spec}, ResourceSliceStruct)


class World:
    def __init__(self, **annotations):
        self.join = Joiner(SlotRule(), lambda: 0.0)
        self.join.set_visibility(run_namespaces=["ml"], is_use_known=True, is_derived=False)
        self.join.put_node(None, node(**annotations))
        self.snapshot = EMPTY_SNAPSHOT

    def claims(self, name="p"):
        self.snapshot = apply(self.snapshot, self.join.changes())
        return next(pod.devices for pod in self.snapshot.pods.values() if pod.name == name)


def test_a_claim_takes_its_whole_gpu_once_it_has_been_given_one():
    world = World()
    world.join.put_pod(None, pod("p", "c"))
    assert world.claims() == (DeviceUsage(None, None, 1),)
    world.join.put_resource_claim(None, claim("c"))
    assert world.claims() == (DeviceUsage(None, None, 1),)
    world.join.put_resource_claim(claim("c"), claim("c", "gpu-2"))
    assert world.claims() == (DeviceUsage(2, None, 4),)
    assert {item.state for item in world.snapshot.ledger.of_gpu("n", 2)} == {SlotState.BUSY}
    assert len(world.snapshot.ledger.free()) == 12
    world.join.put_resource_claim(claim("c", "gpu-2"), None)
    assert world.claims() == (DeviceUsage(None, None, 1),)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_slice_tells_which_gpu_a_device_is(is_old):
    world = World(**{labels.GPU_UUIDS: ",".join(UUIDS)})
    world.join.put_pod(None, pod("p", "c"))
    world.join.put_resource_claim(None, claim("c", "gpu-0"))
    assert world.claims() == (DeviceUsage(0, None, 4),)
    by_uuid = devices(is_old, uuid={"string": UUIDS[3]}, index={"int": 1})
    world.join.put_resource_slice(None, by_uuid)
    assert world.claims() == (DeviceUsage(3, None, 4),)
    world.join.put_resource_slice(by_uuid, devices(is_old, uuid={"string": "GPU-other"}, index={"int": 1}))
    assert world.claims() == (DeviceUsage(1, None, 4),)
    world.join.put_resource_slice(by_uuid, None)
    assert world.claims() == (DeviceUsage(0, None, 4),)


def test_pods_that_share_a_claim_share_the_slots_of_its_gpu():
    world = World()
    world.join.put_resource_claim(None, claim("c", "gpu-1", users=2))
    for name in ("p", "q"):
        world.join.put_pod(None, pod(name, "c"))
    assert (world.claims("p"), world.claims("q")) == ((DeviceUsage(1, None, 2),),) * 2
    assert world.snapshot.ledger.problems == ()
    assert len(world.snapshot.ledger.free()) == 12


def test_a_slice_of_a_gpu_costs_one_slot_and_other_drivers_give_no_gpu():
    world = World()
    world.join.put_resource_claim(None, claim("mig", "gpu-1-mig-1g-5gb-19-0"))
    world.join.put_resource_claim(None, claim("net", "eth0", driver="net.example.com"))
    world.join.put_pod(None, pod("p", "mig"))
    world.join.put_pod(None, pod("q", "net"))
    assert (world.claims("p"), world.claims("q")) == ((DeviceUsage(1, None, 1),), ())


def test_a_claim_made_from_a_template_is_found_by_the_name_that_it_got():
    world = World()
    world.join.put_resource_claim(None, claim("c-x7", "gpu-3"))
    waiting, named = pod("p", template="t"), pod("p", "c-x7", "t")
    world.join.put_pod(None, waiting)
    assert world.claims() == (DeviceUsage(None, None, 1),)
    world.join.put_pod(waiting, named)
    assert world.claims() == (DeviceUsage(3, None, 4),)
    world.join.put_pod(named, None)
    world.join.put_resource_claim(claim("c-x7", "gpu-3"), None)  # no pod uses it any longer
    assert world.join.changes() == (PodGone("u-p"),)


def test_the_claim_of_a_pod_that_may_not_be_read_leaves_no_slot_of_its_node_free():
    world = World()
    world.join.put_resource_claim(None, claim("c", "gpu-0"))  # in another namespace than the pod
    foreign = pod("p", "c", namespace="theirs")
    world.join.put_pod(None, foreign)
    assert world.claims() == (DeviceUsage(None, None, 1),)
    assert world.snapshot.ledger.free() == ()
    assert {slot.state for slot in world.snapshot.ledger.slots.values()} == {SlotState.UNKNOWN}
    world.join.put_pod(foreign, None)
    world.snapshot = apply(world.snapshot, world.join.changes())
    assert len(world.snapshot.ledger.free()) == 16


def test_a_pod_of_ours_that_was_given_another_gpu_than_its_plan_says_is_flagged():
    world = World()
    marks = {labels.RUN_ID: "r", labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.GPU: "1", labels.HOST: "n"}
    world.join.put_resource_claim(None, claim("c", "gpu-2"))
    world.join.put_pod(None, pod("p", "c", labels=marks))
    assert world.claims() == (DeviceUsage(2, None, 4),)
    assert "its plan says 1" in next(iter(world.snapshot.pods.values())).flags[0]


NO_PATH = {"text": "404 page not found\n", "status": 404}
"""An API server's answer to a path that it does not serve."""


@asynccontextmanager
async def serving(versions, refused=()):
    """A server that serves these versions of resource.k8s.io, and allows watches of all kinds but the refused
    ones.
    """

    async def group(_):
        named = [{"groupVersion": f"resource.k8s.io/{version}", "version": version} for version in versions]
        return web.json_response({"versions": named}) if versions else web.Response(**NO_PATH)

    async def missing(_):
        return web.Response(**NO_PATH)

    async def review(request):
        requested = (await request.json())["spec"]["resourceAttributes"]
        names = {requested["resource"], f"{requested['resource']} of all" if "namespace" not in requested else ""}
        return web.json_response({"status": {"allowed": not names & set(refused)}})

    app = web.Application()
    app.router.add_get("/apis/resource.k8s.io", group)
    app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    app.router.add_get("/{path:.*}", missing)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = Api(Access("test", "test", f"http://127.0.0.1:{runner.addresses[0][1]}", User("tester")))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("versions", "refused", "paths"),
    [
        ((), (), []),
        (("v1alpha3",), (), []),
        (("v1beta1", "v1"), (), ["v1/resourceclaims", "v1/resourceslices"]),
        (("v1beta1",), (), ["v1beta1/resourceclaims", "v1beta1/resourceslices"]),
        (("v1",), ("resourceslices",), ["v1/resourceclaims"]),
        (("v1",), ("resourceclaims", "resourceslices"), []),
        (("v1",), ("resourceclaims of all",), ["v1/namespaces/default/resourceclaims", "v1/resourceslices"]),
        (("v1",), ("pods",), ["v1/namespaces/default/resourceclaims", "v1/resourceslices"]),
    ],
)
async def test_claims_are_followed_in_the_version_that_is_served_where_they_may_be(versions, refused, paths):
    async with serving(versions, refused) as api:
        result = scopes(await find_visibility(api))
    reported = [item.path for item in result if item.kind.startswith("Resource")]
    assert reported == [f"/apis/resource.k8s.io/{path}" for path in paths]


def test_a_monitor_with_administrators_access_takes_no_gpu():
    world = World()
    allocated = claim("c", "gpu-0")
    raw = msgspec.to_builtins(allocated)
    raw["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    world.join.put_resource_claim(None, msgspec.convert(raw, ResourceClaimStruct))
    world.join.put_pod(None, pod("p", "c"))
    assert world.claims() == ()
    assert {slot.state for slot in world.snapshot.ledger.slots.values()} == {SlotState.FREE}
