"""Tracks with a place on the earth: this project's own courses, and files in Learn-to-Race's form.

Such a file is a JSON object: ``ReferencePoint`` (latitude, longitude in degrees, altitude in m), ``Inside``,
``Outside`` and ``Centre``, lists of [east, north] in metres about it; a third number in a point is left out. The
simulator and the environment read the same files, so both mean the same place.

Poses carry degrees (WGS-84), maps the local east, north, up in metres. They are converted by a tangent plane in
the exact ellipsoid geometry, as in textbooks on navigation, with errors below a millimetre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base import bounded_json
from runtime.tracks.track import COURSES, Floats, Track, make_track

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


OWN_REFERENCE: Final = (52.0, -1.0, 100.0)
"""Location of this project's own courses: a field in England, as good as any."""
STAND_INS: Final = {"thruxton": "ridge", "angleseynational": "meadow", "vegasnorthroad": "harbour"}
"""Levels that clients of the lab's simulator open by name; without a file of theirs, a course of ours stands in."""
FILE_FAMILIES: Final = {"thruxton": "thruxton", "angleseynational": "anglesey", "vegasnorthroad": "vegas"}
"""Beginning of the names of files of those levels: ``ThruxtonFromGoogle_2.json`` and ``ThruxtonOfficial.json``."""
LAB_LEVELS: Final = ("Thruxton", "AngleseyNational", "VegasNorthRoad")


class MapError(ValueError):
    """A track file cannot be used; the sentence names it and what is wrong."""


@dataclass(frozen=True, slots=True)
class TrackMap:
    """A course and where it lies."""

    track: Track
    frame: LocalFrame

    def edges(self) -> tuple[Floats, Floats]:
        """(N, 2) left and right edge, m east and north."""
        normal = np.column_stack([-np.sin(self.track.heading), np.cos(self.track.heading)])
        left = self.track.centre + normal * self.track.left[:, None]
        right = self.track.centre - normal * self.track.right[:, None]
        return left, right

    def to_json(self) -> dict[str, Any]:
        """Return the course in Learn-to-Race's form."""
        left, right = self.edges()
        inside, outside = (left, right) if _area(self.track.centre) > 0 else (right, left)
        reference = [self.frame.latitude, self.frame.longitude, self.frame.altitude]
        lines = {"Inside": inside, "Outside": outside, "Centre": self.track.centre}
        return {"ReferencePoint": reference, **{name: np.round(line, 3).tolist() for name, line in lines.items()}}


def short_name(level: str) -> str:
    """Return the answer of ``get_level`` for a level: ``.../Ribbon/thruxton/thruxton.umap`` is ``thruxton``."""
    return level.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".umap").lower()


def plain_name(level: str) -> str:
    """The same without signs between words, as levels and files are compared: ``anglesey_national``."""
    return "".join(sign for sign in short_name(level).removesuffix(".json") if sign.isalnum())


def own_map(name: str) -> TrackMap:
    """One of this project's courses, by its name. MapError for another name."""
    if name not in COURSES:
        raise MapError(f"there is no course {name!r}; known are {', '.join(COURSES)}, or a track file (.json)")
    return TrackMap(make_track(name), LocalFrame(*OWN_REFERENCE))


def load_map(name_or_file: str) -> TrackMap:
    """A course by name, or from a file whose name ends in ``.json``. Raises MapError."""
    if not name_or_file.endswith(".json"):
        return own_map(name_or_file)
    path = Path(name_or_file)
    try:
        document = bounded_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise MapError(f"the track file {path} cannot be read: {error}") from error
    return from_json(short_name(path.stem), document)


def from_json(name: str, document: Any) -> TrackMap:
    """The course in a decoded file. Raises MapError."""
    if not isinstance(document, dict):
        raise MapError(f"track {name!r}: a track file holds one JSON object")
    centre, inside, outside = (_line(name, document, key) for key in ("Centre", "Inside", "Outside"))
    reference = document.get("ReferencePoint")
    try:
        reference_point = np.asarray(reference, dtype=np.float64)
    except (TypeError, ValueError):
        reference_point = np.empty(0)
    if (
        reference_point.shape != (3,)
        or not np.isfinite(reference_point).all()
        or not (abs(reference_point[0]) < 90 and abs(reference_point[1]) <= 180)
    ):
        raise MapError(f"track {name!r}: ReferencePoint must be [latitude, longitude, altitude], not {reference!r}")
    to_inside, to_outside = _distances(centre, inside), _distances(centre, outside)
    # Which side is inside depends on the direction of travel: counter-clockwise has it on the left.
    left, right = (to_inside, to_outside) if _area(centre) > 0 else (to_outside, to_inside)
    try:
        track = Track.from_centre_line(name, centre, left=left, right=right)
    except ValueError as error:
        raise MapError(str(error)) from error
    return TrackMap(track, LocalFrame(*map(float, reference_point)))


def _line(name: str, document: dict[str, Any], key: str) -> Floats:
    """(M, 2) points of a closed line, without the last where it repeats the first."""
    try:
        points = np.asarray(document.get(key), dtype=np.float64)
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 8 or not np.isfinite(points).all():
        raise MapError(f"track {name!r}: {key} must be a list of at least 8 points [east, north] in metres")
    line: Floats = points[:, :2]
    return line[:-1] if np.hypot(*(line[0] - line[-1])) < 1e-6 else line


def _area(line: Floats) -> float:
    """Signed area, m^2: positive for a line that runs counter-clockwise."""
    x, y = line[:, 0], line[:, 1]
    return float(0.5 * np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)))


def _distances(points: Floats, line: Floats) -> Floats:
    """(N,) distance of each point from a closed line of short pieces."""
    dense = _dense(line)
    distances = np.empty(len(points))
    for first in range(0, len(points), 256):  # all together would take gigabytes for a long course
        gap: NDArray[np.float64] = points[first : first + 256, None, :] - dense[None, :, :]
        distances[first : first + 256] = np.sqrt(np.min(np.einsum("ijk,ijk->ij", gap, gap), axis=1))
    return distances


def _dense(line: Floats, step: float = 0.5) -> Floats:
    """The closed line with a point at least every ``step`` metres."""
    closed = np.vstack([line, line[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    at = np.linspace(0.0, along[-1], max(len(line), int(along[-1] / step)), endpoint=False)
    return np.column_stack([np.interp(at, along, closed[:, 0]), np.interp(at, along, closed[:, 1])])
