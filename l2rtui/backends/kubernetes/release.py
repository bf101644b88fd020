"""The claims on slots that a run still has: counted for its receipt, and given up when its pods are gone."""

from __future__ import annotations

from l2rtui.backends.kubernetes import labels, leases
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.inventory import is_refusal, wait_longer
from l2rtui.errors import BackendError

_TRIES = 6


class Claims:
    """Claims of one run.

    Attributes:
        number: The most that were ever counted. trouble: why they could not be counted or removed; empty when they
            could.
    """

    def __init__(self, api: Api, namespace: str, run_id: str) -> None:
        self.number = 0
        self.trouble = ""
        self._api = api
        self._namespace = namespace
        self._run_id = run_id

    async def count(self) -> dict[leases.Device, int]:
        """How many claims there are on each device; sets ``trouble`` where nobody can tell."""
        return await self._persist(is_releasing=False)

    async def release(self) -> bool:
        """Give all of them up; whether none is left."""
        await self._persist(is_releasing=True)
        return not self.trouble and not await self._persist(is_releasing=False) and not self.trouble

    async def _persist(self, *, is_releasing: bool) -> dict[leases.Device, int]:
        pause = 0.1
        for _ in range(_TRIES):
            try:
                found = await self._find()
                self.number = max(self.number, sum(found.values()))
                if is_releasing and found:
                    await leases.release(self._api, self._namespace, [self._run_id], found)
            except BackendError as error:
                if isinstance(error, ApiError) and error.is_forbidden and not self.number:
                    return {}  # who may not read claims has not made any
                self.trouble = f"could not be {'removed' if is_releasing else 'counted'}: {error.message}"
                if isinstance(error, ApiError) and is_refusal(error):
                    return {}
                pause = await wait_longer(pause)
            else:
                self.trouble = ""
                return found
        return {}

    async def _find(self) -> dict[leases.Device, int]:
        selector = f"{labels.APP_MANAGED_BY}={labels.MANAGED_BY}"
        found: dict[leases.Device, int] = {}
        for lease in await self._api.list("Lease", self._namespace, labels=selector):
            claims = leases.claims_of(lease)
            number = sum(claim.get("run_id") == self._run_id for claim in claims.values())
            node, _, gpu = str(lease["metadata"].get("annotations", {}).get(labels.HOST, "")).rpartition("/")
            if number and node and gpu.isdecimal():
                found[node, int(gpu)] = number
        return found
