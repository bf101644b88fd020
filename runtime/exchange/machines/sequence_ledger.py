"""Ledger of sequence numbers: how many segments each worker sent, and the outcome of each (standard library only).

Part of every checkpoint, so that the counts agree with the stored experience.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

MAX_OPEN_ACCOUNTS: Final = 1024
"""Maximum number of separate accounts; older ones are merged into a sum, so that a checkpoint stays small."""

OWN_ACCOUNT: Final = "learner"
"""Name of the account for transitions that the learner itself collects."""


@dataclass(slots=True)
class Account:
    """Number of segments of one incarnation of one worker, by outcome.

    ``sent = accepted + stale + misfit + lost + missing`` and, of what arrived,
    ``received = accepted + stale + misfit + duplicate + early``. `sent` is the highest sequence number that the
    worker is known to have used. Missing ones are in flight while the worker lives, and died with it otherwise.
    """

    name: str
    last_seq: int = 0
    sent: int = 0
    accepted: int = 0
    stale: int = 0
    misfit: int = 0
    lost: int = 0
    duplicate: int = 0
    early: int = 0
    transitions: int = 0

    @property
    def received(self) -> int:
        """Number of segments that arrived, in this or an earlier epoch."""
        return self.accepted + self.stale + self.misfit + self.duplicate + self.early

    @property
    def missing(self) -> int:
        """Number of segments that were sent but have not arrived."""
        return max(0, self.sent - self.last_seq)

    def raise_sent(self, sent: int) -> None:
        """Record that the worker has used the sequence numbers up to `sent`."""
        self.sent = max(self.sent, sent)

    def lose_before(self, oldest: int) -> None:
        """Count segments as lost that the worker can no longer send: all before `oldest` that never arrived."""
        missing = oldest - 1 - self.last_seq
        if missing > 0:
            self.lost += missing
            self.last_seq += missing
        self.raise_sent(oldest - 1)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all accounts, in segments, with the equations of `Account`; `transitions` are env steps."""

    sent: int
    missing: int
    received: int
    accepted: int
    stale: int
    misfit: int
    lost: int
    duplicate: int
    early: int
    transitions: int


@dataclass(slots=True)
class Accounts:
    """All accounts of a run, by `pod@incarnation`.

    Attributes:
        closed: Sum of the oldest accounts, which are no longer stored separately.
        durable: Last sequence number of each account in a durable checkpoint.
        active: Names of the connected workers' accounts, which stay separate however many they are.
        awaited: Names of those that were connected when the checkpoint was written, likewise.
    """

    by_name: dict[str, Account] = field(default_factory=dict)
    closed: Account = field(default_factory=lambda: Account(""))
    durable: dict[str, int] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    awaited: frozenset[str] = frozenset()

    def open(self, pod: str, incarnation: int) -> Account:
        """Return the account of this incarnation, creating it if necessary, and mark it as most recently used."""
        name = f"{pod}@{incarnation}"
        account = self.by_name.pop(name, None) or Account(name)
        self.by_name[name] = (
            account  # at the end: a dict iterates in order of insertion, so the first is the oldest
        )
        while len(self.by_name) > MAX_OPEN_ACCOUNTS + len(self.active) + len(self.awaited):
            oldest = self.by_name.pop(next(iter(self.by_name)))
            if oldest.name in self.active or oldest.name in self.awaited:
                self.by_name[oldest.name] = oldest
                continue
            self.durable.pop(oldest.name, None)
            oldest.lose_before(oldest.sent + 1)  # its worker ended long ago, so missing segments never come
            _add(self.closed, oldest)
        return account

    def settle_own(self, transitions: int) -> None:
        """Count a rollout that the learner itself collected, in an account like the workers' accounts."""
        account = self.open(OWN_ACCOUNT, 0)
        account.last_seq += 1
        account.raise_sent(account.last_seq)
        account.accepted += 1
        account.transitions += transitions

    def durable_seq(self, name: str) -> int:
        """Return the last sequence number of the account that is in a durable checkpoint."""
        return self.durable.get(name, 0)

    def last_seqs(self) -> dict[str, int]:
        """Return the last settled sequence number of each account, by its name."""
        return {name: account.last_seq for name, account in self.by_name.items()}

    @property
    def totals(self) -> Totals:
        """Sums over all accounts of the run, including closed ones."""
        everything, missing = Account(""), 0
        for account in (self.closed, *self.by_name.values()):
            _add(everything, account)
            missing += account.missing
        # Missing is not a field but computed per account: the difference of two sums would let one hide another.
        names = [item.name for item in fields(Totals) if item.name != "missing"]
        return Totals(missing=missing, **{name: getattr(everything, name) for name in names})

    def state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        accounts = [asdict(account) for account in self.by_name.values()]
        return {"accounts": accounts, "closed": asdict(self.closed), "active": sorted(self.active)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Accounts:
        """Return the accounts of a checkpoint, all of them durable. Raises ValueError if it has none."""
        try:
            open_accounts = [Account(**fields_) for fields_ in state["accounts"]]
            closed = Account(**state["closed"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state of accounts: {error}") from error
        awaited = frozenset(state.get("active", ()))  # earlier versions did not save it
        accounts = cls({account.name: account for account in open_accounts}, closed, awaited=awaited)
        accounts.durable = accounts.last_seqs()
        return accounts


def _add(total: Account, account: Account) -> None:
    for item in fields(Account):
        if item.name not in {"name", "last_seq"}:
            setattr(total, item.name, getattr(total, item.name) + getattr(account, item.name))
