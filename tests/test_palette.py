"""Series can be told apart: by colour, for every eye, and by more than colour."""

import itertools

import numpy as np
import pytest

from mlm.report import palette

# To what eyes of each kind of colour blindness see, in linear RGB (Machado et al. 2009, severity 1).
SIGHT = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    share_3 = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(share_3 <= 0.04045, share_3 / 12.92, ((share_3 + 0.055) / 1.055) ** 2.4)


def oklab(linear_3) -> np.ndarray:
    """Ottosson 2020, "A perceptual color space for image processing"."""
    lms_3 = np.cbrt(
        np.clip(linear_3, 0, 1)
        @ np.array(
            [
                [0.4122214708, 0.2119034982, 0.0883024619],
                [0.5363325363, 0.6806995451, 0.2817188376],
                [0.0514459929, 0.1073969566, 0.6299787005],
            ]
        )
    )
    return lms_3 @ np.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )


@pytest.mark.parametrize("colours, ground", [(palette.LIGHT, "#ffffff"), (palette.DARK, palette.DARK_BACKGROUND)])
def test_colours_are_apart_for_every_eye_and_stand_out(colours, ground):
    def luminance(colour):
        return linear(colour) @ (0.2126, 0.7152, 0.0722) + 0.05

    for colour in colours:
        contrast = luminance(colour) / luminance(ground)
        assert max(contrast, 1 / contrast) >= 3, colour
    for matrix in SIGHT.values():
        seen = [oklab(np.array(matrix) @ linear(colour)) for colour in colours]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.12
