"""Exact accounts of what every worker sent and what became of it (stdlib only); part of every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

KEPT: Final = 1024
"""Accounts of incarnations that are kept by name; older ones live on in the totals alone."""


@dataclass(slots=True)
class Account:
    """Segments of one incarnation of one worker.

    ``sent = accepted + stale + misfit + lost + missing`` and, of what arrived,
    ``received = accepted + stale + misfit + duplicate + early``. `sent` is the highest number that the worker is
    known to have given out. What is missing of it is on its way while the worker lives, and died with it otherwise.
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
        """Segments that arrived from it in this or an earlier epoch."""
        return self.accepted + self.stale + self.misfit + self.duplicate + self.early

    @property
    def missing(self) -> int:
        """Segments that were sent and of which nothing is known yet."""
        return max(0, self.sent - self.last_seq)

    def claim(self, sent: int) -> None:
        """Note that the worker has given out the numbers up to `sent`."""
        self.sent = max(self.sent, sent)

    def lose_before(self, oldest: int) -> None:
        """Write off what the worker can no longer send: everything before `oldest` that never arrived."""
        missing = oldest - 1 - self.last_seq
        if missing > 0:
            self.lost += missing
            self.last_seq += missing
        self.claim(oldest - 1)


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
    """All accounts of a run. `closed` sums those that are no longer kept by name."""

    by_name: dict[str, Account] = field(default_factory=dict)
    closed: Account = field(default_factory=lambda: Account(""))
    durable: dict[str, int] = field(default_factory=dict)

    def open(self, pod: str, incarnation: int) -> Account:
        """Return the account of this incarnation, the newest in order of use; a new one if it is not known."""
        name = f"{pod}@{incarnation}"
        account = self.by_name.pop(name, None) or Account(name)
        self.by_name[name] = account
        while len(self.by_name) > KEPT:
            oldest = self.by_name.pop(next(iter(self.by_name)))
            self.durable.pop(oldest.name, None)
            oldest.lose_before(oldest.sent + 1)  # nobody can ask for it any more
            _add(self.closed, oldest)
        return account

    def durable_seq(self, name: str) -> int:
        """Return up to where the account's segments are in a checkpoint."""
        return self.durable.get(name, 0)

    def last_seqs(self) -> dict[str, int]:
        """Return up to where each account has been settled, by its name."""
        return {name: account.last_seq for name, account in self.by_name.items()}

    @property
    def totals(self) -> Totals:
        """Sums over every account that there ever was."""
        everything, missing = Account(""), 0
        for account in (self.closed, *self.by_name.values()):
            _add(everything, account)
            missing += account.missing
        names = [one.name for one in fields(Totals) if one.name != "missing"]
        return Totals(missing=missing, **{name: getattr(everything, name) for name in names})

    def state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {"accounts": [asdict(each) for each in self.by_name.values()], "closed": asdict(self.closed)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Accounts:
        """Return the accounts of a checkpoint, all of them durable. Raises ValueError if it holds none."""
        try:
            kept = [Account(**each) for each in state["accounts"]]
            closed = Account(**state["closed"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state of accounts: {error}") from error
        accounts = cls({each.name: each for each in kept}, closed)
        accounts.durable = accounts.last_seqs()
        return accounts


def _add(total: Account, one: Account) -> None:
    for item in fields(Account):
        if item.name not in {"name", "last_seq"}:
            setattr(total, item.name, getattr(total, item.name) + getattr(one, item.name))
