"""Positions on the earth and on a track's map: WGS-84 to the local east, north, up in metres and back.

The pose carries degrees; track maps are metres about a reference point. A tangent plane in the exact ellipsoid
geometry (as in any textbook on navigation): what a client of the protocol computes comes out to the millimetre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

SEMI_MAJOR: Final = 6_378_137.0
"""m"""
ECCENTRICITY_2: Final = 6.69437999014e-3
"""First eccentricity of WGS-84, squared."""

Vector = tuple[float, float, float]


def _ecef(latitude: float, longitude: float, altitude: float) -> Vector:
    """Earth-centred coordinates, m, of a point in degrees and metres."""
    phi, lam = math.radians(latitude), math.radians(longitude)
    normal = SEMI_MAJOR / math.sqrt(1.0 - ECCENTRICITY_2 * math.sin(phi) ** 2)
    across = (normal + altitude) * math.cos(phi)
    up = (normal * (1.0 - ECCENTRICITY_2) + altitude) * math.sin(phi)
    return across * math.cos(lam), across * math.sin(lam), up


@dataclass(frozen=True, slots=True)
class LocalFrame:
    """The plane that touches the earth at a reference point: latitude, longitude in degrees, altitude in m."""

    latitude: float
    longitude: float
    altitude: float
    _origin: Vector = field(init=False, repr=False, compare=False)
    _axes: tuple[Vector, Vector, Vector] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        phi, lam = math.radians(self.latitude), math.radians(self.longitude)
        sin_phi, cos_phi, sin_lam, cos_lam = math.sin(phi), math.cos(phi), math.sin(lam), math.cos(lam)
        axes = (
            (-sin_lam, cos_lam, 0.0),
            (-sin_phi * cos_lam, -sin_phi * sin_lam, cos_phi),
            (cos_phi * cos_lam, cos_phi * sin_lam, sin_phi),
        )
        object.__setattr__(self, "_origin", _ecef(self.latitude, self.longitude, self.altitude))
        object.__setattr__(self, "_axes", axes)

    def to_local(self, latitude: float, longitude: float, altitude: float) -> Vector:
        """East, north, up in m."""
        x, y, z = _ecef(latitude, longitude, altitude)
        dx, dy, dz = x - self._origin[0], y - self._origin[1], z - self._origin[2]
        east, north, up = (a * dx + b * dy + c * dz for a, b, c in self._axes)
        return east, north, up

    def to_geodetic(self, east: float, north: float, up: float) -> Vector:
        """Latitude, longitude in degrees, altitude in m."""
        (ex, ey, ez), (nx, ny, nz), (ux, uy, uz) = self._axes
        x = self._origin[0] + ex * east + nx * north + ux * up
        y = self._origin[1] + ey * east + ny * north + uy * up
        z = self._origin[2] + ez * east + nz * north + uz * up
        across = math.hypot(x, y)
        phi = math.atan2(z, across * (1.0 - ECCENTRICITY_2))
        altitude = 0.0
        for _ in range(4):  # each round gains five digits near the ground
            normal = SEMI_MAJOR / math.sqrt(1.0 - ECCENTRICITY_2 * math.sin(phi) ** 2)
            altitude = across / math.cos(phi) - normal
            phi = math.atan2(z, across * (1.0 - ECCENTRICITY_2 * normal / (normal + altitude)))
        return math.degrees(phi), math.degrees(math.atan2(y, x)), altitude
