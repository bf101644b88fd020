"""Flow control: credit for the workers of a learner, granted in equal shares and in turn.

Transitions that are granted but have not arrived never exceed the limits of `SessionTerms` and the rate limiter.
Their sum is updated with each event, and workers that need credit wait in a queue, so the work for one segment does
not grow with the number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runtime.exchange.machines.member_state import MIN_WINDOW, Member, SessionTerms


@dataclass(slots=True)
class CreditQueue:
    """Queue of workers that need credit, and the number of transitions in flight.

    The limits themselves are in the members, as absolute sequence numbers that only increase within an epoch.

    Attributes:
        ceiling: Total number of env steps that the rate limiter allows.
        inflight: Transitions that are granted but have not arrived, over all members.
    """

    terms: SessionTerms
    ceiling: int = 0
    inflight: int = 0
    _waiting: deque[bytes] = field(default_factory=deque)
    """Routes of the workers with less than a window of credit; the first has waited longest."""

    def queue(self, member: Member) -> None:
        """Add a worker to the queue unless it is already there or has a full window of credit."""
        if not member.waits and member.is_worker and member.outstanding < self.terms.window:
            member.waits = True
            self._waiting.append(member.route)

    def give_back(self, member: Member, segments: int) -> None:
        """Subtract `segments` granted segments that have arrived or never will."""
        self.inflight -= member.hello.segment_transitions * segments

    def grant(self, members: Mapping[bytes, Member], workers: int, env_steps: int) -> Iterator[bytes]:
        """Grant equal shares in turn, within rate limiter and memory; yield the routes that got one.

        A worker with more than half of its window left gets nothing now: small grants cause small messages (silly
        window syndrome, Clark 1982, RFC 813). Scarce credit is granted one segment at a time. No worker gets more
        than half of its share of the remaining rate limit, so that at the end of a batch fast workers do not wait
        for slow ones: guided self-scheduling (Polychronopoulos and Kuck 1987).
        """
        while self._waiting:
            member = members.get(self._waiting[0])
            window = self._window(member, workers, env_steps) if member is not None else 0
            # Entries are not removed from the middle of the deque when a member leaves or is served elsewhere: a
            # stale entry is dropped here, when its turn comes.
            if member is None or not member.waits or 2 * member.outstanding > window:
                if member is not None:
                    member.waits = False
                self._waiting.popleft()
                continue
            size = member.hello.segment_transitions
            room = self.ceiling - env_steps - self.inflight
            if self.inflight == 0 and env_steps < self.ceiling:
                # One segment always fits; otherwise a limiter whose band is shorter than a segment would block
                # forever.
                room = max(room, size)
            room = min(room, max(self.terms.inflight_transitions, size) - self.inflight)
            if room < size:
                return
            share = max(1, room // (size * len(self._waiting)))
            # The limit may be behind `last_seq` if numbers were written off as lost: credit counts from there.
            more = min(share, window - member.outstanding)
            self.inflight += size * more
            member.limit = max(member.limit, member.account.last_seq) + more
            yield member.route
            self._waiting.rotate(-1)

    def _window(self, member: Member, workers: int, env_steps: int) -> int:
        """Return how many segments from one worker may be in flight now.

        Never more than its share of the memory: otherwise a worker that does not use its credit would accumulate
        the others' credit, and leave them one segment at a time.
        """
        size = member.hello.segment_transitions
        memory = max(1, self.terms.inflight_transitions // (workers * size))
        pace = max(MIN_WINDOW, (self.ceiling - env_steps) // (2 * workers * size))
        return min(self.terms.window, memory, pace)
