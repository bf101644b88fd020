"""Closed race tracks as arrays over arc length, and where on them a point lies.

A track is its centre line, resampled every ``step`` metres, with heading, curvature and the distance to either
edge at each sample; SI units, counter-clockwise angles. ``from_centre_line`` takes any closed line of points.
``make_track`` draws this project's own courses: closed cubic B-splines, whose curvature changes without jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runtime.tracks.vehicle import Namespace

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

BEHIND: Final = 10
"""Metres behind the last known place that ``project`` looks at."""
AHEAD: Final = 14
"""Metres ahead of it; a car at 100 m/s covers 10 in a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Projection of B points onto a track; every field is (B,)."""

    index: Indices
    """Nearest sample of the centre line."""
    distance: Floats
    """Arc length of the foot point from the start line, m, in [0, length)."""
    offset: Floats
    """Distance from the centre line, m, positive to the left."""
    heading: Floats
    """Direction of the centre line at the foot point, rad."""


@dataclass(frozen=True, slots=True)
class Track:
    """A closed course of N samples."""

    name: str
    step: float
    """Metres between samples."""
    centre: Floats
    """(N, 2) x east and y north, m."""
    heading: Floats
    """(N,) direction of travel, rad."""
    curvature: Floats
    """(N,) 1/m, positive in a left turn."""
    left: Floats
    """(N,) centre line to left edge, m."""
    right: Floats
    """(N,) centre line to right edge, m."""
    xp: Namespace = np
    """Library of the arrays."""

    def converted(self, xp: Namespace, convert: Callable[[Floats], Any]) -> Track:
        """Return the course with the arrays of ``xp`` that ``convert`` makes of this one's, for `project` there."""
        names = ("centre", "heading", "curvature", "left", "right")
        return replace(self, xp=xp, **{name: convert(getattr(self, name)) for name in names})

    @property
    def length(self) -> float:
        """Of the centre line, m."""
        return self.step * len(self.curvature)

    @classmethod
    def from_centre_line(
        cls, name: str, points: ArrayLike, *, left: ArrayLike, right: ArrayLike, step: float = 1.0
    ) -> Track:
        """Resample a closed line of (M, 2) points, in order of travel and without a repeated last point.

        ``left`` and ``right`` are the distances to the edges, one number or one a point. ``step`` is adjusted
        so that a whole number of samples closes the course. Raises ValueError for fewer than 8 points, other
        shapes or values that are not finite.
        """
        line = np.asarray(points, dtype=np.float64)
        if line.ndim != 2 or line.shape[1] != 2 or len(line) < 8 or not np.isfinite(line).all():
            raise ValueError(
                f"track {name!r}: the centre line needs at least 8 finite points (x, y), got {line.shape}"
            )
        closed = np.vstack([line, line[:1]])
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
        count = max(8, round(along[-1] / step))
        step = float(along[-1] / count)
        at = step * np.arange(count)

        def sampled(values: ArrayLike) -> Floats:
            column = np.broadcast_to(np.asarray(values, dtype=np.float64), (len(line),))
            return np.asarray(np.interp(at, along, np.append(column, column[0])))

        centre = np.column_stack([sampled(line[:, 0]), sampled(line[:, 1])])
        # Central differences over the closed line: heading and curvature have no seam at the start.
        chord = np.roll(centre, -1, axis=0) - np.roll(centre, 1, axis=0)
        heading = np.arctan2(chord[:, 1], chord[:, 0])
        turn = np.roll(heading, -1) - np.roll(heading, 1)
        # Wrapped to (-pi, pi]: the heading jumps by 2 pi somewhere on every closed course.
        curvature = ((turn + np.pi) % (2 * np.pi) - np.pi) / (2 * step)
        return cls(name, step, centre, heading, curvature, sampled(left), sampled(right))

    def locate(self, x: Floats, y: Floats) -> Indices:
        """Nearest sample of each point (B,), by looking at the whole course: for a car that was just placed."""
        gap_x, gap_y = x[:, None] - self.centre[:, 0], y[:, None] - self.centre[:, 1]
        nearest: Indices = np.argmin(gap_x * gap_x + gap_y * gap_y, axis=1)
        return nearest

    def project(self, x: Floats, y: Floats, near: Indices) -> Projection:
        """Foot points of (B,) points that lie within a few metres along the course of the samples ``near``.

        The window keeps the lookup cheap, and keeps a car on its own part of the course where two parts pass
        close to each other.
        """
        xp, count, behind = self.xp, len(self.curvature), int(BEHIND / self.step)
        window = xp.arange(-behind, int(AHEAD / self.step) + 1, device=near.device)
        around = (near[:, None] + window) % count
        gap_x, gap_y = x[:, None] - self.centre[around, 0], y[:, None] - self.centre[around, 1]
        best = xp.argmin(gap_x * gap_x + gap_y * gap_y, axis=1)
        index = (near + best - behind) % count
        gap_x, gap_y = x - self.centre[index, 0], y - self.centre[index, 1]
        heading, curvature = self.heading[index], self.curvature[index]
        cos, sin = xp.cos(heading), xp.sin(heading)
        offset = gap_y * cos - gap_x * sin
        # A metre along the inside of a bend is more than a metre of centre line; without this the distance
        # would jump from sample to sample.
        along = (gap_x * cos + gap_y * sin) / (1.0 - curvature * offset).clip(0.2, None)
        # A foot point beyond the neighbouring sample would mean that `index` is not the nearest one.
        along = along.clip(-self.step, self.step)
        distance = (index * self.step + along) % self.length
        return Projection(index, distance, offset, heading + curvature * along)

    def look_ahead(self, distances: ArrayLike) -> Floats:
        """(N, K) mean curvature, 1/m, between each pair of neighbouring ``distances`` (K + 1,) ahead of a sample.

        Means over stretches that join miss no bend, which curvature at single points would.
        """
        turned = np.concatenate([[0.0], np.cumsum(np.tile(self.curvature, 2))])
        edges = np.round(np.asarray(distances, dtype=np.float64) / self.step).astype(np.intp)
        starts = np.arange(len(self.curvature))[:, None]
        totals: Floats = turned[starts + edges[1:]] - turned[starts + edges[:-1]]
        return totals / np.diff(edges)


@dataclass(frozen=True, slots=True)
class Course:
    """A closed cubic B-spline, scaled to a length."""

    length: float
    """Of the centre line, m."""
    width: float
    """Edge to edge, m."""
    points: str
    """Control points ``x,y`` in order of travel, as SVG writes a polyline; the start line lies beside the first."""


COURSES: Final[Mapping[str, Course]] = {
    "meadow": Course(
        640.0, 12.0, "3,0 5,0 7,0 8.6,0.6 9,2.2 7.8,3.6 6,3.2 4.4,3.4 3,4.6 1,4.4 -0.2,3 -0.2,1.2 1,0"
    ),
    "harbour": Course(
        860.0,
        12.0,
        "4,0 6,0 8,0 10,0 11.4,0.8 11.2,2.4 9.6,2.8 8,2.4 6.8,3.2 7.4,4.6 9,5.4 9,7 7.4,7.6 5.4,7 "
        "4.6,5.4 3.6,4.2 1.6,4.6 0,4 -0.4,2 0.6,0.4 2,0",
    ),
    "ridge": Course(
        1150.0,
        12.0,
        "5,0 7,0 9,0 11,0 13,0.2 14.2,1.4 13.4,2.8 11.8,2.8 10.4,2.2 9,2.8 9,4.2 10.4,5 12.2,5 "
        "14,5.6 14.4,7.2 13,8.4 11,8.2 9.4,7.2 7.8,7.6 6.2,8.6 4.2,8.4 3.6,6.8 4.8,5.6 5,4.2 "
        "3.6,3.4 1.6,3.8 0.2,3 0.2,1.2 1.6,0.2 3,0",
    ),
}
"""Name to shape, from gentle to winding."""


def make_track(name: str) -> Track:
    """Draw one of ``COURSES``. ValueError for another name."""
    if name not in COURSES:
        raise ValueError(f"unknown track {name!r}; known are {', '.join(COURSES)}")
    course = COURSES[name]
    points = np.array([point.split(",") for point in course.points.split()], dtype=np.float64)
    t = np.linspace(0.0, 1.0, 256, endpoint=False)[:, None]
    # Weights of the four control points around a stretch; curvature is continuous where stretches join.
    weights = (1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3
    stretches = [
        sum(weight * points[(first + k) % len(points)] for k, weight in enumerate(weights)) / 6
        for first in range(-1, len(points) - 1)
    ]
    line = np.vstack(stretches)
    line *= course.length / np.hypot(*(line - np.roll(line, 1, axis=0)).T).sum()
    return Track.from_centre_line(name, line, left=course.width / 2, right=course.width / 2)
