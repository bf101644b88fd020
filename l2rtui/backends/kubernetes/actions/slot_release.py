"""Claims on slots of one run: counted for the receipt of its destroy, and released when its pods are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from l2rtui.backends.kubernetes.actions.slot_leases import Device, SlotLeases
from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.errors import BackendError

_TRIES = 6


class RunClaims:
    """Claims of one run: the highest count, and the problem if they could not be counted or removed.

    ``refusal`` is the reason why this user can never remove them; otherwise empty.
    """

    def __init__(self, leases: Sequence[SlotLeases], run_id: str) -> None:
        self.number = 0
        self.trouble = self.refusal = ""
        self._leases = leases
        self._run_id = run_id
        self._counted: set[SlotLeases] = set()

    async def count(self) -> dict[Device, int]:
        """Return the number of claims on each device; sets ``trouble`` if it is unknown."""
        return await self._retry(is_releasing=False)

    async def release(self) -> bool:
        """Release all claims; return whether none is left."""
        await self._retry(is_releasing=True)
        # Counted again: a launch in progress may have claimed again after the release.
        return not self.trouble and not await self._retry(is_releasing=False) and not self.trouble

    async def _retry(self, *, is_releasing: bool) -> dict[Device, int]:
        pauses = RetryPauses(0.1)
        for _ in range(_TRIES):
            try:
                counts: Counter[Device] = Counter()
                for leases in self._leases:
                    own = await self._counts_of(leases)
                    counts.update(own)
                    if is_releasing and own:
                        await leases.release([self._run_id], own)
                self.number = max(self.number, counts.total())
            except BackendError as error:
                cause = error.reason_left if isinstance(error, ApiError) else error.message
                self.trouble = f"could not be {'removed' if is_releasing else 'counted'}: {cause}"
                if isinstance(error, ApiError) and error.is_final:
                    self.refusal = self.trouble
                    return {}
                await pauses.wait()
            else:
                self.trouble = ""
                return counts
        return {}

    async def _counts_of(self, leases: SlotLeases) -> dict[Device, int]:
        try:
            counts = await leases.counts_of(self._run_id)
        except ApiError as error:
            if error.is_forbidden and leases not in self._counted:
                return {}  # a user who may not read Leases cannot have claimed through them
            raise
        if counts:
            self._counted.add(leases)
        return counts
