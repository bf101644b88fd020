"""Pod logs of a real cluster across cuts: every numbered line once and in order, from many pods in parallel."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from l2rtui.backends.common.log_merge import merge_streams
from l2rtui.backends.kubernetes.api.client import connect
from l2rtui.backends.kubernetes.streams.logs import LogTiming, read
from l2rtui.domain.log import LogQuery
from l2rtui.domain.snapshot import PodView
from tests.cluster.cutting import through_a_cutting_proxy
from tests.cluster.handmade import PAUSE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
QUICK = LogTiming(pause_seconds=0.05, longest_pause_seconds=1.0)


@pytest.fixture
async def api(kubeconfig):
    made = await connect()
    yield made
    await made.close()


def manifest(namespace, name, node, command=("sleep", "3600"), restart="Never", **fake):
    container = {"name": "main", "image": PAUSE, "imagePullPolicy": "IfNotPresent", "command": list(command)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {f"l2r.fake/{key}": value for key, value in fake.items()},
        },
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


async def running(api, namespace, names):
    """The pods, once all of them run."""
    for _ in range(400):
        read_lines = {line["metadata"]["name"]: line for line in await api.list("Pod", namespace)}
        if all(read_lines[name]["status"]["phase"] == "Running" for name in names):
            return [PodView(read_lines[name]["metadata"]["uid"], name, namespace=namespace) for name in names]
        await asyncio.sleep(0.1)
    raise AssertionError(f"not all of {names} run")


@pytest.mark.smoke
async def test_a_real_pods_lines_come_once_through_a_proxy_that_cuts(api, namespace):
    script = "i=0; while [ $i -lt 1500 ]; do i=$((i+1)); echo line $i; [ $((i % 10)) -ne 0 ] || sleep 0.1; done"
    await api.create(manifest(namespace, "real", "phortx0", ("sh", "-c", script)))
    (pod,) = await running(api, namespace, ["real"])
    async with asyncio.timeout(120), through_a_cutting_proxy((0.3, 1.5)) as (cutting, cuts):
        stream = read(cutting, pod, LogQuery(follow=True), timing=QUICK)
        read_lines = [line async for line in stream]
    assert [line.text for line in read_lines if not line.is_mark] == [f"line {number}" for number in range(1, 1501)]
    assert [line.text for line in read_lines if line.is_mark] in ([], ["exit 0"])
    assert len(cuts) >= 3


@pytest.mark.smoke
async def test_a_crash_is_marked_and_the_next_process_is_followed(api, namespace):
    script = "echo begin; echo end; exit 3"
    await api.create(manifest(namespace, "crashing", "phortx0", ("sh", "-c", script), "Always"))
    async with asyncio.timeout(120):
        while True:  # it may crash before it is seen running
            (one,) = await api.list("Pod", namespace)
            if one["status"].get("containerStatuses"):
                break
            await asyncio.sleep(0.1)
        pod = PodView(one["metadata"]["uid"], "crashing", namespace=namespace)
        read_lines = []
        async with aclosing(read(api, pod, LogQuery(follow=True), timing=QUICK)) as stream:
            async for line in stream:
                read_lines.append(line)
                if sum(one.text == "end" for one in read_lines) == 2:
                    break
    marks = [one.text for one in read_lines if one.is_mark]  # the kubelet's own messages may be among them
    assert [one.text for one in read_lines if not one.is_mark] == 2 * ["begin", "end"]
    assert any("exit 3" in text for text in marks)
    assert any(text.startswith("restart ") for text in marks)
    assert not any(one.is_mark for one in read_lines[-2:]), "what is between two processes stands between them"


async def test_sixty_four_streams_at_once_lose_nothing(api, namespace):
    names = [f"many-{number}" for number in range(64)]
    fakes = {"log-rate": "10", "log-line": "line {n}"}
    await asyncio.gather(*(api.create(manifest(namespace, name, "phortx3", **fakes)) for name in names))
    pods = await running(api, namespace, names)
    last: dict[str, int] = {}
    async with through_a_cutting_proxy((2.0, 6.0)) as (cutting, cuts):
        streams = [read(cutting, pod, LogQuery(follow=True, tail=5, seam=True), timing=QUICK) for pod in pods]
        end = time.monotonic() + 15
        async with aclosing(merge_streams(streams)) as lines:
            async for line in lines:
                if not (line.is_mark or line.is_seam):
                    number = int(line.text.removeprefix("line "))
                    assert number == last.get(line.pod, number - 1) + 1, line
                    last[line.pod] = number
                if time.monotonic() > end and len(last) == len(pods):
                    break
    assert len(last) == 64
    assert len(cuts) > 64
