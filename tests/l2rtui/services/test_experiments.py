"""Experiments from one look at the logs of their learners."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.services import metrics
from l2rtui.services.learning import LearningReader
from l2rtui.services.sweeps import experiments


@pytest.fixture
def backend():
    return FakeBackend(owner="me")


def reader(backend):
    return LearningReader(backend, with_ended=True)


async def look(backend):
    snapshot = await backend.snapshot()
    runs = tuple(snapshot.runs.values())
    return {each.experiment: each for each in await experiments(reader(backend), snapshot, runs, backend.now())}


async def test_an_experiment_is_the_mean_of_what_its_learners_say(backend):
    snapshot = await backend.snapshot()
    returns = {}
    for run in snapshot.runs_matching("racing-sac"):
        newest = await metrics.newest(backend, run.name, metrics.learner_of(snapshot, run.name))
        returns[run.seed] = newest.reported_return
    summary = (await look(backend))["racing-sac"]
    assert summary.mean_return == pytest.approx(np.mean(list(returns.values())))
    assert summary.best_seed == max(returns, key=returns.get)
    assert (summary.runs, summary.live) == (2, 2)


async def test_each_log_is_read_once(backend):
    read, logs = [], backend.logs

    def counted(pod, query):
        read.append(pod.name)
        return logs(pod, query)

    backend.logs = counted
    await look(backend)
    assert len(read) == len(set(read))


async def test_a_learner_that_is_over_gives_its_last_return(backend):
    snapshot = await backend.snapshot()
    pods = {
        uid: replace(pod, phase=Phase.SUCCEEDED, ready=False) if pod.role is Role.LEARNER else pod
        for uid, pod in snapshot.pods.items()
    }
    over = dataclasses.replace(snapshot, pods=pods)
    runs = tuple(over.runs.values())
    summaries = await experiments(reader(backend), over, runs, backend.now())
    assert all(summary.mean_return is not None and summary.done == summary.runs for summary in summaries)
