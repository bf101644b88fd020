"""Who may send how much: credit for the workers of a learner, by equal shares and in turn.

What is granted and has not come never exceeds what `Terms` and the pace allow. The sum of it is kept up to date and
who wants credit waits in a queue, so the work for a segment does not grow with the number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runtime.members import LEAST_WINDOW, Member, Terms


@dataclass(slots=True)
class Credits:
    """The queue and the sum. Limits are the members' own: absolute sequence numbers that only rise."""

    terms: Terms
    ceiling: int = 0
    """Env steps that the pace allows in all."""
    inflight: int = 0
    """Transitions granted and not yet seen, over all members."""
    _waiting: deque[bytes] = field(default_factory=deque)
    """Routes of the workers that have less than a window of credit, who has waited longest first."""

    def queue(self, member: Member) -> None:
        """Let a worker stand in the queue for credit, once."""
        if not member.waits and member.is_worker and member.outstanding < self.terms.window:
            member.waits = True
            self._waiting.append(member.route)

    def give_back(self, member: Member, segments: int) -> None:
        """Note that so many segments of those granted have come, or never will."""
        self.inflight -= member.hello.segment_transitions * segments

    def grant(self, members: Mapping[bytes, Member], workers: int, env_steps: int) -> Iterator[bytes]:
        """Hand out equal shares in turn, as far as pace and memory allow, and yield who got one.

        Who still has more than half of its window is left alone: credit in crumbs makes messages of crumbs (silly
        window syndrome, Clark 1982, RFC 813). Where credit is scarce it is one segment at a time. Nobody gets more
        than half of its part of what the pace leaves, so that at the end of a stretch the quick do not wait for the
        slow: guided self-scheduling (Polychronopoulos and Kuck 1987).
        """
        while self._waiting:
            member = members.get(self._waiting[0])
            window = self._window(member, workers, env_steps) if member is not None else 0
            if member is None or not member.waits or 2 * member.outstanding > window:
                if member is not None:
                    member.waits = False
                self._waiting.popleft()
                continue
            size = member.hello.segment_transitions
            room = self.ceiling - env_steps - self.inflight
            if self.inflight == 0 and env_steps < self.ceiling:
                room = max(room, size)  # who may do anything may do one segment
            room = min(room, max(self.terms.inflight_transitions, size) - self.inflight)
            if room < size:
                return
            share = max(1, room // (size * len(self._waiting)))
            more = min(share, window - member.outstanding)
            self.inflight += size * more
            member.limit = max(member.limit, member.account.last_seq) + more
            yield member.route
            self._waiting.rotate(-1)

    def _window(self, member: Member, workers: int, env_steps: int) -> int:
        """Return how many segments may be on their way from a worker just now.

        Never more than its part of the memory: a worker that does not use its credit would else gather that of the
        others, and they would be left with a segment at a time.
        """
        size = member.hello.segment_transitions
        memory = max(1, self.terms.inflight_transitions // (workers * size))
        pace = max(LEAST_WINDOW, (self.ceiling - env_steps) // (2 * workers * size))
        return min(self.terms.window, memory, pace)
