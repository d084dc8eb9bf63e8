"""Names of models: those of two zoos in, which are the same model, and how sure that is, out.

torchvision:resnet50   keras:ResNet50     the same name but for its spelling
timm:resnet50.a1_in1k  keras:ResNet50     the same without the name of its weights
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath

_NO_LETTER = re.compile(r"[^a-z0-9]")
_FILE = (".onnx", ".tflite", ".pb")
_UNLIKE = 0.05  # of the parameters' size: what two builds of one model differ by at most

Pairs = dict[str, tuple[str, float]]


def matched(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    given: Mapping[str, str] | None = None,
) -> Pairs:
    """Return for each model of the first zoo the same one of the second, with a confidence.

    The confidence is 1 where names are equal or were given, 0.9 where their spelling differs, and
    0.7 where one has the name of its weights behind a point; half of that where the sizes of the
    parameters differ by more than 5 %. A name that fits several is matched with none.

    Args:
        first: Size of the parameters of each model of the first zoo; None where it is not known.
        second: The same of the second.
        given: Models of the second by those of the first, where they are known to be the same.

    >>> matched({"torchvision:resnet50": 102.2e6}, {"keras:ResNet50": 102.5e6})
    {'torchvision:resnet50': ('keras:ResNet50', 0.9)}
    """
    found: Pairs = {
        name: (other, 1.0)
        for name, other in (given or {}).items()
        if name in first and other in second
    }
    steps: tuple[tuple[Callable[[str], str], float], ...] = (
        (str, 1.0), (_spelled, 0.9), (_without_weights, 0.7)
    )  # fmt: skip
    for key, confidence in steps:
        taken = {other for other, _ in found.values()}
        left = _unique((name for name in first if name not in found), key)
        right = _unique((name for name in second if name not in taken), key)
        for each in left.keys() & right.keys():
            pair = left[each], right[each]
            same = confidence == 1.0 or _alike(first[pair[0]], second[pair[1]])
            found[pair[0]] = (pair[1], confidence if same else confidence / 2)
    return {name: found[name] for name in first if name in found}


def _unique(names: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    """Return names by their keys, without those of which several have the same."""
    by_name = {name: key(name) for name in names}
    often = Counter(by_name.values())
    return {each: name for name, each in by_name.items() if often[each] == 1}


def _spelled(name: str) -> str:
    """Return a name without its source, and without how it is spelled.

    >>> _spelled("torchvision:efficientnet_b0"), _spelled("keras:EfficientNetB0")
    ('efficientnetb0', 'efficientnetb0')
    """
    bare = name.rpartition(":")[2]
    path = PurePath(bare)
    bare = path.stem if path.suffix in _FILE else bare
    return _NO_LETTER.sub("", bare.lower())


def _without_weights(name: str) -> str:
    path = PurePath(name.rpartition(":")[2])
    return _spelled(name) if path.suffix in _FILE else _spelled(path.name.partition(".")[0])


def _alike(first: float | None, second: float | None) -> bool:
    """Return whether sizes of parameters do not speak against two models being the same."""
    if not first or not second:
        return True
    return abs(first - second) <= _UNLIKE * max(first, second)
