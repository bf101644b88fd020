"""Events of Kubernetes objects; other backends report theirs in the same form."""

from __future__ import annotations

from msgspec import Struct


class KubeEvent(Struct, frozen=True):
    """Event about an object, after the Kubernetes API's Event (events.k8s.io/v1).

    Attributes:
        time: Last occurrence, seconds since the epoch. level: Normal or Warning.
        object: Kind and name, ``Pod racing-sac-w-x7k2p``. count: number of occurrences.
    """

    time: float
    level: str
    reason: str
    object: str
    message: str
    namespace: str = ""
    count: int = 1
