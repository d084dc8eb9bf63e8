from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from xsp.show.plot import KINDS, SERIES, Color

Floats = NDArray[np.float64]

# Machado, Oliveira and Fernandes (2009), "A physiologically-based model for simulation of color
# vision deficiency", table 1, severity 1.0; of linear RGB.
SIGHT = {
    "all cones": np.eye(3),
    "no long cones": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no middle cones": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
LEAST = 11.0  # distance in CIELAB; just noticeable are about 2.3
PAGES = {"light": "#ffffff", "dark": "#14171c"}


def linear(color: str) -> Floats:
    channels = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(color: str, sight: Floats) -> Floats:
    xyz = TO_XYZ @ np.clip(sight @ linear(color), 0, 1) / np.array([0.9505, 1.0, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("colors", [tuple(KINDS.values()), SERIES], ids=["kinds", "series"])
def test_people_tell_the_colors_apart(colors: tuple[Color, ...], page: str, sight: str) -> None:
    seen = [(getattr(color, page), lab(getattr(color, page), SIGHT[sight])) for color in colors]
    near = [
        (one, other, round(float(np.linalg.norm(a - b)), 1))
        for (one, a), (other, b) in itertools.combinations(seen, 2)
        if np.linalg.norm(a - b) < LEAST
    ]
    assert near == []
