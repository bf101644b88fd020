"""What the pods of the selected run say of themselves: a stream each, for as long as they have something to say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final

from textual.worker import Worker

from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError
from l2rtui.services import podnews
from l2rtui.services.podnews import PodNews
from l2rtui.ui.beat import until_beat
from l2rtui.ui.link import Link

MOST_STREAMS: Final = 32
"""Of one run; more rows than that are in sight on no screen."""
PERIOD_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 5.0


class PodFeed:
    """Follows pods and tells all news at most once a second."""

    def __init__(self, link: Link, tell: Callable[[Mapping[str, PodNews]], object]) -> None:
        self._link = link
        self._tell = tell
        self._workers: dict[str, Worker[None]] = {}
        self._newest: dict[str, PodNews] = {}
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, pods: Iterable[PodView]) -> None:
        """These are the pods of the run that is looked at."""
        told = [pod for pod in pods if pod.started and _may_tell(pod)]
        wanted = {pod.uid: pod for pod in told[:MOST_STREAMS]}
        for uid in self._workers.keys() - wanted.keys():
            self._workers.pop(uid).cancel()
        for uid in wanted.keys() - self._workers.keys():
            pod = wanted[uid]
            self._workers[uid] = self._link.background.start(
                self._read(pod), group="podnews", what=f"the records of {pod.name}"
            )

    async def _read(self, pod: PodView) -> None:
        while True:
            try:
                async with aclosing(podnews.follow(self._link.backend, pod)) as found:
                    async for news in found:
                        self._newest[pod.uid] = news
                        if self._timer is None:
                            loop = asyncio.get_running_loop()
                            self._timer = loop.call_later(until_beat(PERIOD_SECONDS), self._send)
            except L2RError:  # the watch says that the backend is down
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _send(self) -> None:
        self._timer = None
        newest, self._newest = self._newest, {}
        self._tell(newest)


def _may_tell(pod: PodView) -> bool:
    """Whether it writes records of its own: a learner's are its run's; of what is over, a job's still count."""
    return pod.role not in (None, Role.LEARNER) and (pod.role is Role.JOB or not pod.phase.is_over)
