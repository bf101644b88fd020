"""exec, port-forward, describe and events against a real container."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing

import pytest

from l2rtui.backends.kubernetes.actions import describe, diagnose
from l2rtui.backends.kubernetes.api.client import connect
from l2rtui.backends.kubernetes.streams import channels
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError
from tests.cluster.test_logs import manifest, running

pytestmark = [pytest.mark.cluster, pytest.mark.smoke, pytest.mark.timeout(180)]
_PROGRAM = """
import asyncio, sys
from l2rtui.backends.kubernetes.streams import channels
from l2rtui.backends.kubernetes.api.client import connect
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import L2RError
async def main():
    api = await connect()
    try:
        return await channels.run(api, PodView("", "real", namespace=sys.argv[1]), sys.argv[2:])
    except L2RError as error:
        print(error, file=sys.stderr)
        return 99
    finally:
        await api.close()
sys.exit(asyncio.run(main()))
"""


@pytest.fixture
async def api(kubeconfig):
    made = await connect()
    yield made
    await made.close()


async def ran(namespace, *argv, stdin=b""):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, namespace, *argv,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ),
    )  # fmt: skip
    out, err = await process.communicate(stdin)
    return process.returncode, out, err


async def test_a_command_gets_our_streams_and_gives_its_code(api, namespace):
    await api.create(manifest(namespace, "real", "phortx0"))
    await running(api, namespace, ["real"])
    script = "read line; echo got $line; echo bad >&2; exit 7"
    assert await ran(namespace, "sh", "-c", script, stdin=b"hello\n") == (7, b"got hello\n", b"bad\n")
    code, _, err = await ran(namespace, "no-such-program")
    assert code in (99, 126, 127)
    assert b"no-such-program" in err + _
    code, out, _ = await ran(namespace, "sh", "-c", "head -c 300000 /dev/zero")
    assert (code, len(out)) == (0, 300_000)


async def test_what_a_command_says_is_captured_byte_by_byte_without_a_terminal(api, namespace):
    await api.create(manifest(namespace, "real", "phortx0"))
    await running(api, namespace, ["real"])
    pod = PodView("", "real", namespace=namespace)
    result = await channels.capture(api, pod, ["sh", "-c", "printf 'a\\377\\000b'; echo bad >&2; exit 5"])
    assert (result.code, result.out, result.err) == (5, b"a\xff\x00b", b"bad\n")
    large = await channels.capture(api, pod, ["sh", "-c", "head -c 300000 /dev/zero"])
    assert (large.code, len(large.out)) == (0, 300_000)
    try:
        code = (await channels.capture(api, pod, ["no-such-program"])).code
    except BackendError:  # with the container runtime's message
        code = 127
    assert code in (126, 127)
    assert await diagnose.denied(api, namespace) == {}, "the administrator may do everything"


async def test_a_port_that_nobody_serves_is_told_and_the_listener_stays(api, namespace):
    await api.create(manifest(namespace, "real", "phortx0"))
    (pod,) = await running(api, namespace, ["real"])
    async with asyncio.timeout(60), aclosing(channels.forward(api, pod, 0, 9)) as news:
        host, port = (await anext(news)).split()[0].split(":")
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == b""
            writer.close()
            assert "port 9 of real failed" in await anext(news)


async def test_a_pod_is_described_with_its_events(api, namespace):
    await api.create(manifest(namespace, "real", "phortx0"))
    (pod,) = await running(api, namespace, ["real"])
    text = "\n".join(await describe.describe(api, pod))
    for fragment in ("pod real", "node:        phortx0", "container main:", "Ready True", "Scheduled"):
        assert fragment in text
    result = await describe.events(api, pod)
    assert {"Scheduled", "Started"} <= {item.reason for item in result}
    assert [item.time for item in result] == sorted(item.time for item in result)
