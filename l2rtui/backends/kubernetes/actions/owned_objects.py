"""What of a run is there, counted on the server itself: by label, by owner, and by what was seen before.

A count is worth as much as its gaps are known. Every list is a fresh read of the server's store and not of its
cache; one that fails is tried again, and one that goes on failing is a gap with a reason and never an empty list.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import PAGE, Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kinds import KINDS, KindPath
from l2rtui.backends.kubernetes.structs import JustMeta, Meta, ObjectList, PodStruct

CONTROLLERS: Final = ("Job", "ReplicaSet", "StatefulSet")
"""What makes pods; first of all to go."""
OWN_KINDS: Final = ("Pod", "ReplicaSet", "Job", "Service", "Secret", "ConfigMap")
"""What a launch makes: whoever may launch may list these."""
FOLLOWERS: Final = ("Endpoints", "EndpointSlice")
"""What the cluster makes for a Service and removes with it, whether or not we may."""
OTHER_KINDS: Final = ("StatefulSet", *FOLLOWERS, "PersistentVolumeClaim", "ResourceClaim", "ResourceClaimTemplate")
"""What some runs have, or what the cluster adds. Who may not list them has not made them; those that follow a
Service go with it."""

_TRIES = 7
_FIRST_PAUSE_SECONDS = 0.1
_AT_ONCE = 6


@dataclass(frozen=True, slots=True)
class Found:
    """One object of a run.

    Attributes:
        pod: The pod itself where it is one.
    """

    kind: str
    meta: Meta
    pod: PodStruct | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Kind and uid; a replaced object of the same name is another."""
        return self.kind, self.meta.uid

    @property
    def is_going(self) -> bool:
        """Whether its deletion has begun."""
        return self.meta.deletion_timestamp is not None


@dataclass(slots=True)
class Count:
    """The objects that a look has found.

    Attributes:
        gaps: Kind → why it could not be counted.
    """

    found: dict[tuple[str, str], Found] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)

    def of(self, *kinds: str) -> tuple[Found, ...]:
        """Objects of these kinds."""
        return tuple(one for one in self.found.values() if one.kind in kinds)

    @property
    def is_empty(self) -> bool:
        """Nothing is there, and that is known."""
        return not self.found and not self.gaps

    @property
    def numbers(self) -> tuple[tuple[str, int], ...]:
        """How many there are of each kind."""
        kinds = (*OWN_KINDS, *OTHER_KINDS)
        return tuple((kind, number) for kind in kinds if (number := len(self.of(kind))))


class Inventory:
    """The objects of one run in its namespace.

    Attributes:
        seen: Everything that was ever counted, as it was last.
    """

    def __init__(self, api: Api, namespace: str, run: str, run_id: str) -> None:
        self.seen: dict[tuple[str, str], Found] = {}
        self._api = api
        self._namespace = namespace
        self._run = run
        self._run_id = run_id
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._paths: dict[str, KindPath] | None = None

    @property
    def selector(self) -> str:
        """Label selector of the run."""
        return f"{labels.RUN_ID}={self._run_id}"

    async def by_label(self, kinds: Iterable[str] = ()) -> Count:
        """Objects that carry the run's label; quick, for waiting."""
        return await self._count(kinds, self.selector)

    async def in_full(self) -> Count:
        """Objects that carry the label, are owned by the run, directly or not, or were seen before."""
        return await self._count((), "")

    async def _count(self, kinds: Iterable[str], selector: str) -> Count:
        count = Count()
        try:
            paths = await self._served()
        except ApiError as error:
            count.gaps["kinds"] = f"could not be listed: {error.message}"
            return count
        wanted = [kind for kind in paths if not kinds or kind in kinds]
        answers = await asyncio.gather(*(self._listed(kind, paths[kind], selector) for kind in wanted))
        every: list[Found] = []
        for kind, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, str):
                count.gaps[kind] = answer
            else:
                every += answer
        count.found = {one.key: one for one in (every if selector else self._ours(every))}
        self.seen |= count.found
        return count

    def _ours(self, every: list[Found]) -> list[Found]:
        """Those of all objects that belong to the run; an owner counts whether or not it is there any more."""
        owners = {uid for _, uid in self.seen}
        owners |= {
            owner.uid
            for one in self.seen.values()
            for owner in one.meta.owner_references or ()
            if owner.kind == "ConfigMap" and owner.name == labels.run_object(self._run)
        }
        ours: dict[tuple[str, str], Found] = {}
        while True:
            more = [one for one in every if one.key not in ours and self._is_ours(one, owners)]
            if not more:
                return list(ours.values())
            ours |= {one.key: one for one in more}
            owners |= {one.meta.uid for one in more}

    def _is_ours(self, one: Found, owners: set[str]) -> bool:
        if one.key in self.seen or one.meta.label(labels.RUN_ID) == self._run_id:
            return True
        if any(owner.uid in owners for owner in one.meta.owner_references or ()):
            return True
        # By name, where nothing says that it is another run's: labels can be lost, names cannot.
        names = {seen.meta.name for seen in self.seen.values() if seen.kind == one.kind}
        names |= {labels.run_object(self._run)} if one.kind in ("ConfigMap", "Secret") else set()
        return one.meta.name in names and not one.meta.label(labels.RUN_ID)

    async def _served(self) -> dict[str, KindPath]:
        """Kinds that this server has, each in a version that it serves."""
        if self._paths is None:
            found = {kind: KINDS[kind] for kind in (*OWN_KINDS, *OTHER_KINDS)}
            for kind in ("EndpointSlice", "ResourceClaim", "ResourceClaimTemplate"):
                versions = await self._patiently_versions(found[kind].group)
                if versions:
                    found[kind] = found[kind].at(f"{found[kind].group}/{versions[0]}")
                else:
                    del found[kind]
            self._paths = found
        return self._paths

    async def _patiently_versions(self, group: str) -> tuple[str, ...]:
        pause = _FIRST_PAUSE_SECONDS
        for left in reversed(range(_TRIES)):
            try:
                return await self._api.group_versions(group)
            except ApiError as error:
                if left == 0 or is_refusal(error):
                    raise
                pause = await wait_longer(pause)
        raise AssertionError  # pragma: no cover  (the last round returns or raises)

    async def _listed(self, kind: str, path: KindPath, selector: str) -> list[Found] | str:
        """The objects of one kind, or why they could not be counted."""
        pause = _FIRST_PAUSE_SECONDS
        async with self._gate:
            for left in reversed(range(_TRIES)):
                try:
                    return await self._pages(kind, path, selector)
                except ApiError as error:
                    if error.is_forbidden and kind in OTHER_KINDS:
                        return []
                    if error.is_forbidden and kind == "Secret":
                        return await self._secret()
                    if left == 0 or is_refusal(error):
                        return f"could not be counted: {error.message}"
                except msgspec.MsgspecError as error:
                    return f"could not be counted: an object is not readable ({error})"
                pause = await wait_longer(pause)
        raise AssertionError  # pragma: no cover  (the last round returns)

    async def _secret(self) -> list[Found] | str:
        """The run's Secret by its name: many may not list secrets."""
        try:
            body = await self._api.request(
                "GET", KINDS["Secret"].path(self._namespace, labels.run_object(self._run))
            )
        except ApiError as error:
            return [] if error.is_not_found else f"could not be counted: {error.message}"
        meta = msgspec.json.decode(body, type=JustMeta).metadata
        return [Found("Secret", meta)] if meta.label(labels.RUN_ID) == self._run_id else []

    async def _pages(self, kind: str, path: KindPath, selector: str) -> list[Found]:
        base = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        query, found = dict(base), list[Found]()
        while True:
            answer = await self._api.request("GET", path.path(self._namespace), query=query)
            page = msgspec.json.decode(answer, type=ObjectList[msgspec.Raw])
            for item in page.items or ():
                if kind == "Pod":
                    pod = msgspec.json.decode(item, type=PodStruct)
                    found.append(Found(kind, pod.metadata, pod))
                else:
                    found.append(Found(kind, msgspec.json.decode(item, type=JustMeta).metadata))
            if not page.metadata.continue_:
                return found
            query = {**base, "continue": page.metadata.continue_}


def is_refusal(error: ApiError) -> bool:
    """Whether asking again cannot help."""
    return error.is_forbidden or error.is_unauthorized


async def wait_longer(pause: float) -> float:
    """Wait, with jitter; the next pause."""
    await asyncio.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311  (no secret)
    return min(2 * pause, 3.0)
