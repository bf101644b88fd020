"""What a backend offers besides Backend where it can keep secrets for runs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from l2rtui.domain.secret import Secret, SecretView


class SecretStore(Protocol):
    """Where secrets are kept; values go in and never come out here."""

    async def list(self) -> tuple[SecretView, ...]:
        """Those that l2rtui keeps, by name."""
        ...

    async def keep(self, secret: Secret, *, replace: bool = False) -> None:
        """Keep a secret.

        Raises:
            RefusedError: there is one of this name (and ``replace`` was not said), or it is not l2rtui's.
        """
        ...

    async def delete(self, name: str) -> None:
        """Remove a secret.

        Raises:
            NotFoundError: there is none. RefusedError: it is not l2rtui's.
        """
        ...


@runtime_checkable
class KeepsSecrets(Protocol):
    """A backend that keeps secrets."""

    def secrets(self, owner: str) -> SecretStore:
        """Its store.

        Args:
            owner: Who is written down as the owner of what is kept.
        """
        ...
