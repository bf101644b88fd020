"""Events, descriptions and ports of local runs: the supervisor's actions are recorded and readable."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import aclosing

import pytest

from l2rtui.backends.local.supervision.log_file import MAX_BYTES, EventLog, EventRecord, read_events
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import RestartPolicy, Role
from l2rtui.errors import NotFoundError
from tests.leaks import close_files_below

ECHO = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(f"listens {server.getsockname()[1]}", flush=True)  # in one piece: a line may be read before its end
while True:
    connection, _ = server.accept()
    while block := connection.recv(4096):
        connection.sendall(block)
    connection.close()
"""


async def reasons(lab, target=None) -> list[str]:
    return [event.reason for event in await lab.backend.inspector.events(target)]


async def until_reason(lab, reason: str, target=None) -> None:
    await lab.until(lambda _: reason in {event.reason for event in read_events(lab.folder().events)})
    assert reason in await reasons(lab, target)


async def test_a_pod_that_fails_leaves_its_story(lab):
    await lab.launch(
        lab.set("exit", "3", name="bad"),
        lab.set("sleep", "600", name="good"),
        lab.set(name="none", command=("no-such-command-here",), restart=RestartPolicy.NEVER),
    )
    bad = await lab.pod(lambda pod: pod.restarts >= 2, "run-bad-0")
    events = await lab.backend.inspector.events(bad)
    assert [event.reason for event in events][:6] == [
        "Claimed", "Started", "Died", "Restarted", "Died", "BackOff",
    ]  # fmt: skip
    assert {event.object for event in events} == {"Pod run-bad-0"}
    died = events[2]
    assert (died.level, died.message) == ("Warning", "exit 3")
    restarted = next(event for event in events if event.reason == "Restarted")
    assert restarted.message.startswith("restart 1, exit 3, pid ")
    assert str(bad.slots[0]) in events[0].message
    await until_reason(lab, "StartError")
    (missing,) = [event for event in await lab.backend.inspector.events() if event.reason == "StartError"]
    assert missing.level == "Warning"
    assert "no executable file" in missing.message
    assert (await lab.backend.inspector.events())[0].object in ("Run run", "Pod run-bad-0")


async def test_kills_and_replacements_are_told_and_another_supervisor_writes_on(lab):
    await lab.launch(lab.set("sleep", "600"))
    pod = await lab.pod(lambda pod: pod.ready)
    await lab.backend.kill([pod], grace_seconds=5.0)
    replaced = await lab.pod(lambda other: other.ready and other.uid != pod.uid)
    assert await reasons(lab, replaced) == ["Claimed", "Started", "Stopping", "Died", "Replaced"]
    died = (await lab.backend.inspector.events(replaced))[3]
    assert died.level == "Normal", "it was asked to end: its exit code is no fault"
    lab.kill_supervisor()
    await lab.backend.adopt("run")
    await until_reason(lab, "Adopted")
    run = (await lab.backend.snapshot()).run_named("run")
    assert (await reasons(lab, run))[0] in ("Launched", "Claimed")


async def test_a_process_that_outlives_its_grace_period_is_killed_and_that_is_written_down(lab):
    await lab.launch(lab.set("deaf", "say", "deaf", "sleep", "600"))
    pod = await lab.pod(lambda pod: pod.ready)
    await lab.until_line("deaf")
    await lab.backend.kill([pod], grace_seconds=0.2)
    await until_reason(lab, "Killed", pod)


async def test_pods_runs_and_the_node_are_described_without_secrets(lab):
    await lab.launch(lab.set("sleep", "600", env=(("COLOUR", "red"), ("WANDB_API_KEY", "hunter2"))))
    pod = await lab.pod(lambda pod: pod.ready)
    snapshot = await lab.backend.snapshot()
    text = "\n".join(await lab.backend.inspector.describe(pod))
    for part in (
        "pod run-w-0", f"pid:         {pod.pid}", "state:       Running", "restarts:    0", "env COLOUR=red",
        "env WANDB_API_KEY=(hidden)", f"log:         {lab.folder().log_dir('run-w-0')}",
        "Normal  Started  Pod run-w-0",
    ):  # fmt: skip
        assert part in text
    assert "hunter2" not in text
    text = "\n".join(await lab.backend.inspector.describe(snapshot.run_named("run")))
    assert "sets:        w (worker) x 1" in text
    assert f"supervisor:  pid {lab.supervisor().pid}, runs" in text
    assert "Pod run-w-0: Running" in text
    (node,) = snapshot.nodes.values()
    text = "\n".join(await lab.backend.inspector.describe(node))
    assert f"state:       {lab.state}" in text
    with pytest.raises(NotFoundError, match="run run is gone"):
        await lab.backend.inspector.describe(RunView("other", "run", "run"))
    await lab.destroy()
    with pytest.raises(NotFoundError, match="pod run-w-0 is gone"):
        await lab.backend.inspector.describe(pod)
    assert await lab.backend.inspector.events() == ()


async def test_a_process_of_somebody_else_is_described_as_far_as_the_system_permits(lab):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    view = PodView("uid", "python-1", "node", owner="me", pid=process.pid)
    try:
        text = "\n".join(await lab.backend.inspector.describe(view))
        assert f"pid:         {process.pid}" in text
        assert "time.sleep(600)" in text
    finally:
        process.kill()
        await process.wait()
    with pytest.raises(NotFoundError, match="has ended"):
        await lab.backend.inspector.describe(view)


async def test_a_port_of_a_pod_is_carried_and_its_own_needs_no_carrying(lab):
    await lab.launch(lab.set(command=(sys.executable, "-c", ECHO)))
    pod = await lab.pod(lambda pod: pod.ready)
    await lab.until(lambda _: any(lab.folder().log_dir("run-w-0").glob("*.log")))
    while not (lines := [line for line in await lab.lines() if line.startswith("listens")]):
        await asyncio.sleep(0.02)
    remote = int(lines[0].split()[1])
    async with aclosing(lab.backend.inspector.forward(pod, 0, remote)) as sentences:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", await anext(sentences))[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"there and back")
        writer.write_eof()
        assert await reader.read() == b"there and back"
        writer.close()
    own = [sentence async for sentence in lab.backend.inspector.forward(pod, remote, remote)]
    assert len(own) == 1
    assert own[0].endswith(f"is at 127.0.0.1:{remote} already")
    async with aclosing(lab.backend.inspector.forward(pod, 0, 1)) as sentences:
        port = int(re.search(r"127\.0\.0\.1:(\d+)", await anext(sentences))[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        assert "127.0.0.1:1 does not answer" in await anext(sentences)
        writer.close()


async def test_a_port_that_the_launch_chose_stands_for_the_one_in_the_spec(lab):
    await lab.launch(lab.set("sleep", "600", name="ps", role=Role.PS, port=2222, stable=True))
    pod = await lab.pod(lambda pod: pod.ready, "run-ps-0")
    chosen = lab.store.named("run").record.ports["run-ps-0"]
    async with aclosing(lab.backend.inspector.forward(pod, 0, 2222)) as sentences:
        assert f"leads to port {chosen} of run-ps-0" in await anext(sentences)
    assert f"127.0.0.1:{chosen} stands for 2222" in "\n".join(await lab.backend.inspector.describe(pod))


def test_a_journal_is_bounded_survives_damage_and_a_missing_folder(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    event = EventRecord(1.0, "pod", "Died", "x" * 1000)
    for _ in range(3 * MAX_BYTES // 1000):
        log.add(event)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * MAX_BYTES + 2000
    assert len(read_events(path)) > 100
    with path.open("ab") as file:
        file.write(b'{"time":1.0,"pod":"p","rea')
    EventLog(path).add(EventRecord(2.0, "pod", "Started"))
    assert read_events(path)[-1].reason == "Started"
    EventLog(tmp_path / "none" / "events.jsonl").add(event)
    assert read_events(tmp_path / "none" / "events.jsonl") == []
    close_files_below(tmp_path)
