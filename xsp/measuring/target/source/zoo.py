"""Builds models of PyTorch's zoos with random weights and inputs.

Nothing is downloaded: latencies do not depend on the values of the weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.source.library import is_pattern, known, matching, require, version
from xsp.text import suggest

TOKENS = 128  # length of a text; shorter where the model's limit is lower
DECODER_TOKENS = 16
AUDIO_SAMPLES = 16_000  # one second
IMAGE_PIXELS = 224  # height and width, where the model does not say

_CAPACITY = 0.9  # fraction of the free memory that weights may take


@dataclass(frozen=True, slots=True)
class ModelWithInputs:
    """A model and the inputs of one call.

    Attributes:
        model: A `torch.nn.Module`.
        inputs: Positional arguments of the model, batch first.
    """

    model: Any
    inputs: tuple[Any, ...]

    def to(self, device: Any, dtype: Any = None) -> ModelWithInputs:
        """Return the same model and inputs on a device.

        Args:
            device: A `torch.device`, or its name.
            dtype: Element type of weights and inputs, but for integers; None: as they are.
        """
        model = self.model.to(device=device, dtype=dtype)
        return ModelWithInputs(model, tuple(_moved(self.inputs, device, dtype)))


def build(scheme: str, name: str, *, batch: int, sequence: int | None = None) -> ModelWithInputs:
    """Return a model of `torchvision`, `timm` or `transformers` with its inputs.

    Args:
        scheme: Name of the library: `torchvision`, `timm` or `transformers`.
        name: Name of the model in that library.
        batch: How many images, texts or sounds.
        sequence: Length of a text in tokens; None: 128, or the model's limit if that is lower.

    Raises:
        UnknownTargetError: The library has no such model, or the model no such input.
        MeasurementError: The library is not installed, or the model is too large.
    """
    if scheme == "transformers":
        return _transformers(name, batch, sequence)
    return _torchvision(name, batch) if scheme == "torchvision" else _timm(name, batch)


def check(scheme: str, name: str, *, sequence: int | None = None) -> None:
    """Verify, without building it, that there is a model and that it takes these inputs.

    Raises:
        UnknownTargetError: The library has no such model, or the model no such input.
        MeasurementError: The library is not installed.
    """
    require(scheme, f"{scheme}:{name}")
    if scheme == "torchvision":
        _known_torchvision(name)
    elif scheme == "timm":
        _known_timm(name)
    else:
        make, config = _transformers_factory(name)
        if sequence is not None:
            with require("torch", name).device("meta"):
                _check_sequence(make(), config, sequence)


def models(scheme: str, pattern: str = "") -> tuple[str, ...]:
    """Return the names of a library's models; without a pattern of torchvision the classifiers.

    Raises:
        UnknownTargetError: The pattern matches none, or the library has no such model.
        MeasurementError: The library is not installed.
    """
    library = require(scheme, f"{scheme}:{pattern or '*'}")
    if pattern and not is_pattern(pattern):
        check(scheme, pattern)  # classes of transformers are in no list
        return (pattern,)
    if scheme == "torchvision" and not pattern:
        return tuple(library.models.list_models(module=library.models))
    return matching(pattern or "*", _names(scheme, library), f"{scheme} {version(scheme)}")


def _names(scheme: str, library: Any) -> list[str]:
    if scheme == "transformers":
        return sorted(library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    return list(library.models.list_models() if scheme == "torchvision" else library.list_models())


def _torchvision(name: str, batch: int) -> ModelWithInputs:
    models = _known_torchvision(name)
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):  # their initialization takes a minute, and warns
        options["init_weights"] = False
    model = builder(**options)
    return ModelWithInputs(model, _torchvision_inputs(models, name, model, batch))


def _known_torchvision(name: str) -> Any:
    models = require("torchvision", f"torchvision:{name}").models
    known(name, models.list_models(), f"torchvision {version('torchvision')}")
    return models


def _torchvision_inputs(models: Any, name: str, model: Any, batch: int) -> tuple[Any, ...]:
    import torch  # noqa: PLC0415

    task = models.get_model_builder(name).__module__.split(".")[2]
    if task == "detection":
        return ([torch.rand(3, 480, 640) for _ in range(batch)],)
    if task == "segmentation":
        return (torch.rand(batch, 3, 520, 520),)
    if task == "optical_flow":
        return (torch.rand(batch, 3, 368, 496), torch.rand(batch, 3, 368, 496))
    weights = list(models.get_model_weights(name))
    size = getattr(weights[0].transforms(), "crop_size", IMAGE_PIXELS) if weights else IMAGE_PIXELS
    sizes = [size] if isinstance(size, int) else list(size)
    pixels = sizes[0], sizes[-1]
    if own := getattr(model, "image_size", None):  # weights may be of a model of another size
        pixels = (own, own)
    frames = (16,) if task == "video" else ()
    return (torch.rand(batch, 3, *frames, *pixels),)


def _timm(name: str, batch: int) -> ModelWithInputs:
    import torch  # noqa: PLC0415

    model = _known_timm(name).create_model(name, pretrained=False)
    size = getattr(model, "pretrained_cfg", {}).get("input_size") or (3, IMAGE_PIXELS, IMAGE_PIXELS)
    return ModelWithInputs(model, (torch.rand(batch, *size),))


def _known_timm(name: str) -> Any:
    timm = require("timm", f"timm:{name}")
    if not timm.is_model(name):
        known(name, timm.list_models(), f"timm {version('timm')}")
    return timm


def _transformers(name: str, batch: int, sequence: int | None) -> ModelWithInputs:
    import torch  # noqa: PLC0415

    require("transformers", f"transformers:{name}")
    make, config = _transformers_factory(name)
    # Weights on the device `meta` have shapes but take no memory.
    with torch.device("meta"):
        needed = sum(weight.numel() * weight.element_size() for weight in make().parameters())
    free = psutil.virtual_memory().available
    if needed > _CAPACITY * free:
        raise MeasurementError(
            f"transformers:{name} with its default configuration has {needed / 1e9:.1f} GB of "
            f"weights, and {free / 1e9:.1f} GB of memory are free here. Build a smaller one in a "
            "function of your own, and measure path.py:function.",
            out_of_memory=True,
        )
    model = make()
    return ModelWithInputs(model, _transformers_inputs(model, config, batch, sequence))


def _check_sequence(model: Any, config: Any, sequence: int) -> None:
    wanted = list(_input_names(model, config))
    if "input_ids" not in wanted:
        raise UnknownTargetError(
            f"a {config.model_type} takes {' and '.join(wanted)}, and no text whose length "
            f"sequence={sequence} could choose: leave that out"
        )
    limit = _longest(config)
    if limit is not None and sequence > limit:
        raise UnknownTargetError(
            f"a {config.model_type} takes texts of {limit} tokens at most, and not of {sequence}"
        )


def _transformers_factory(name: str) -> tuple[Callable[[], Any], Any]:
    """Return a function that makes the model, and the model's configuration.

    `name` is a model type (`bert`), a class (`BertForMaskedLM`), or an Auto class
    with a type (`AutoModelForCausalLM:gpt2`).
    """
    import transformers  # noqa: PLC0415

    auto, _, kind = name.rpartition(":")
    if not auto and kind[:1].isupper():
        model_class = _transformers_class(name, kind)
        config = _without_download(model_class.config_class())
        return lambda: model_class(config), config
    types = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    known(kind, types, f"transformers {version('transformers')}")
    auto_class = _transformers_class(name, auto or "AutoModel", method="from_config")
    config = _without_download(transformers.AutoConfig.for_model(kind))
    if type(config) not in auto_class._model_mapping:
        raise UnknownTargetError(
            f"transformers has no {auto_class.__name__} for the type {kind!r}; name the class: "
            f"transformers:{type(config).__name__.removesuffix('Config')}Model"
        )
    return lambda: auto_class.from_config(config), config


def _transformers_class(name: str, class_name: str, method: str = "config_class") -> Any:
    import transformers  # noqa: PLC0415

    found = getattr(transformers, class_name, None)
    if getattr(found, method, None) is None:
        close = suggest(class_name, (known for known in dir(transformers) if known[0].isupper()))
        kind = "an Auto class" if method == "from_config" else "a model"
        if found is not None and hasattr(found, "from_config"):
            close = f"; an Auto class needs a type: transformers:{class_name}:bert"
        raise UnknownTargetError(f"transformers:{name}: {class_name} is not {kind} there{close}")
    return found


def _without_download(config: Any) -> Any:
    if getattr(config, "use_pretrained_backbone", False):
        config.use_pretrained_backbone = False
    return config


def _transformers_inputs(
    model: Any, config: Any, batch: int, sequence: int | None = None
) -> tuple[Any, ...]:
    """Return positional arguments for `model.forward`, None for parameters left to default."""
    parameters = list(inspect.signature(model.forward).parameters)
    wanted = [name for name in _input_names(model, config) if name in parameters]
    if sequence is not None:
        _check_sequence(model, config, sequence)
    inputs = {name: _input(name, config, batch, sequence) for name in wanted}
    last = max((parameters.index(name) for name in inputs), default=-1)
    return tuple(inputs.get(name) for name in parameters[: last + 1])


def _input_names(model: Any, config: Any) -> Iterator[str]:
    yield model.main_input_name
    if hasattr(model, "logit_scale"):  # such a model compares texts with images
        yield "pixel_values"
    if getattr(config, "is_encoder_decoder", False):
        yield "decoder_input_ids"


def _input(name: str, config: Any, batch: int, sequence: int | None) -> Any:
    import torch  # noqa: PLC0415

    if name in ("input_ids", "decoder_input_ids"):
        usual = TOKENS if name == "input_ids" else DECODER_TOKENS
        asked = sequence if name == "input_ids" else None
        length = asked or min(usual, _longest(config) or usual)
        words = int(getattr(config.get_text_config(), "vocab_size", None) or 1000)
        return torch.randint(words, (batch, length))
    if name == "pixel_values":
        return torch.rand(batch, *_image_shape(config))
    if name == "input_values" and not hasattr(config, "num_mel_bins"):
        return torch.rand(batch, AUDIO_SAMPLES)
    if name in ("input_values", "input_features"):
        return torch.rand(batch, *_spectrum_shape(name, config))
    raise MeasurementError(
        f"a {config.model_type} takes {name!r}, which xsp has no random values for: call the "
        "model in a function of your own, and measure path.py:function"
    )


def _longest(config: Any) -> int | None:
    """Return how many tokens a text may have; None where the model does not say."""
    text = config.get_text_config()
    limits = (getattr(text, key, None) for key in ("max_position_embeddings", "n_positions"))
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def _image_shape(config: Any) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None) or IMAGE_PIXELS
    sizes = [size] if isinstance(size, int) else list(size)
    frames = getattr(vision, "num_frames", None)
    shape = (int(getattr(vision, "num_channels", None) or 3), int(sizes[0]), int(sizes[-1]))
    return (int(frames), *shape) if frames else shape


def _spectrum_shape(name: str, config: Any) -> tuple[int, int]:
    bins = int(getattr(config, "num_mel_bins", None) or 80)
    if name == "input_values":
        return int(getattr(config, "max_length", None) or 1024), bins
    if hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):
        return bins, 2 * int(config.max_source_positions)
    return 200, int(getattr(config, "input_feat_per_channel", None) or bins)


def _moved(values: Any, device: Any, dtype: Any) -> Any:
    if isinstance(values, (list, tuple)):
        return type(values)(_moved(value, device, dtype) for value in values)
    if not hasattr(values, "to"):
        return values
    return values.to(device=device, dtype=dtype if values.is_floating_point() else None)
