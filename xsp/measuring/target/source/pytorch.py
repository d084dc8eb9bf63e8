"""Makes a callable subject of a model of PyTorch's zoos, or of a step of its training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from xsp.errors import MeasurementError, UnknownTargetError
from xsp.measuring.target.source import zoo
from xsp.measuring.target.source.library import require
from xsp.measuring.target.source.zoo import ModelWithInputs
from xsp.measuring.target.spec import AUTOCAST, Spec, Subject
from xsp.text import suggest

_EXPORTED = "onnxruntime"  # the framework for which a model is exported


def prepare(spec: Spec) -> None:
    """Import PyTorch, and the library that a model comes from.

    Raises:
        MeasurementError: A library is not installed.
    """
    for library in dict.fromkeys(("torch", spec.source, spec.runs_on)):
        require(library, spec.target)


def check(spec: Spec) -> None:
    """Verify that there is a model, and that it takes its settings, without building it.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: A library or device that the model needs is missing.
    """
    prepare(spec)
    device_of(spec)
    if spec.runs_on == _EXPORTED and spec.precision == AUTOCAST:
        raise UnknownTargetError(
            f"{spec.target} on ONNX Runtime takes no autocast: the element types are those of the "
            "exported file; leave that out, or measure on PyTorch (--framework torch)"
        )
    if spec.runs_on == _EXPORTED and (spec.train or spec.compiled):
        raise UnknownTargetError(
            f"{spec.target} on ONNX Runtime takes no {'--train' if spec.train else '--compile'}: "
            "it optimizes every model when it loads it, and trains none; leave that out, or "
            "measure on PyTorch (--framework torch)"
        )
    zoo.check(spec.source, spec.inner, sequence=_sequence(spec))


def build(spec: Spec) -> ModelWithInputs:
    """Return the model with its inputs, on the device and of the element type asked for."""
    torch = require("torch", spec.target)
    device = device_of(spec)
    # The same weights and inputs in every process, as values may change the path taken.
    torch.manual_seed(0)
    made = zoo.build(spec.source, spec.inner, batch=spec.batch or 1, sequence=_sequence(spec))
    return made.to(device, dtype_of(spec.precision))


def dtype_of(precision: str | None) -> Any:
    """Return the `torch.dtype` of weights and inputs; None: as they are."""
    import torch  # noqa: PLC0415

    return getattr(torch, precision) if precision not in (None, AUTOCAST) else None


def subject(spec: Spec) -> Subject:
    """Return the model, or a step of its training, as a function to call.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: A library or device that the model needs is missing.
    """
    return subject_of(spec, build(spec))


def subject_of(spec: Spec, built: ModelWithInputs) -> Subject:
    """Return a model that was built, or a step of its training, as a function to call.

    Raises:
        UnknownTargetError: The model has nothing to train.
    """
    subject = _subject(spec, built)
    if spec.compiled:
        built.model.compile()
        subject()  # torch.compile compiles at the first call: no step of it
    return subject


def export(spec: Spec, path: Path) -> None:
    """Write the model as an ONNX file, its inputs of fixed sizes.

    Raises:
        UnknownTargetError: There is no such model, or it does not take these settings.
        MeasurementError: PyTorch cannot export it.
    """
    import torch  # noqa: PLC0415

    check(spec)
    built = build(replace(spec, device=None))  # where it runs ONNX Runtime is told
    model = _traceable(built.model.eval())
    try:
        with torch.no_grad():
            # The exporter by tracing: the newer one needs onnxscript.
            torch.onnx.export(model, built.inputs, str(path), dynamo=False)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise MeasurementError(
            f"PyTorch {torch.__version__} cannot export {spec.target} as ONNX by tracing it: "
            f"{type(error).__name__}: {error}. Export it by other means, and measure onnx:FILE"
        ) from error


def _traceable(model: Any) -> Any:
    """Let a model take what it is given alone, and return tensors alone.

    The exporter passes defaults on, which models of transformers take amiss, and knows no caches.
    """
    forward = model.forward
    for module in model.modules():  # an encoder and a decoder have configurations of their own
        if getattr(getattr(module, "config", None), "use_cache", False):
            module.config.use_cache = False

    def positional(*inputs: Any) -> Any:
        return forward(*inputs)

    model.forward = positional
    return model


def _subject(spec: Spec, built: ModelWithInputs) -> Subject:
    import torch  # noqa: PLC0415

    if spec.train:
        step = training_step(built, partial(_autocast, spec))
        return Subject(step, (), spec.name, "training")
    mode = partial(_inference, spec) if spec.precision == AUTOCAST else torch.inference_mode
    return Subject(built.model.eval(), built.inputs, spec.name, "model", mode)


@contextmanager
def _inference(spec: Spec) -> Iterator[None]:
    import torch  # noqa: PLC0415

    with torch.inference_mode(), _autocast(spec):
        yield


def _autocast(spec: Spec) -> AbstractContextManager[Any]:
    import torch  # noqa: PLC0415

    if spec.precision != AUTOCAST:
        return nullcontext()
    kind = device_of(spec).type
    context: AbstractContextManager[Any] = torch.autocast(kind, dtype=torch.bfloat16)
    return context


def _sequence(spec: Spec) -> int | None:
    """Return the length of texts that a model's specification asks for.

    Raises:
        UnknownTargetError: There is another setting, which no model takes, or no length.
    """
    for key, value in spec.inputs:
        if key != "sequence" or spec.source != "transformers":
            takes = "sequence, the length of a text in tokens"
            close = suggest(key, ["sequence"]) if spec.source == "transformers" else ""
            raise UnknownTargetError(
                f"{spec.target} takes no setting {key!r}{close}; a model of transformers "
                f"takes {takes}; of others measure path.py:function, whose "
                "parameters are settings"
            )
        if type(value) is not int or value < 1:
            raise UnknownTargetError(
                f"{spec.target}: sequence={value!r} is no length: a whole number of tokens, from 1"
            )
    return next((value for _, value in spec.inputs if isinstance(value, int)), None)


def device_of(spec: Spec) -> Any:
    """Return the device that a specification asks for.

    Raises:
        UnknownTargetError: PyTorch has no such device.
        MeasurementError: The device is not to be had here.
    """
    torch = require("torch", spec.target)
    try:
        device = torch.device(spec.device or "cpu")
    except RuntimeError as error:
        raise UnknownTargetError(f"Unknown device {spec.device!r}. Use cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MeasurementError(
            f"PyTorch {torch.__version__} found no CUDA device ({spec.device}). "
            "Use --device cpu, or run `xsp doctor`."
        )
    return device


def training_step(
    built: ModelWithInputs, mode: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Callable[[], None]:
    """Return one step of training as a function: forward, loss, backward, SGD.

    The loss is the cross entropy against class 0 for outputs of shape [batch, classes],
    and the mean square for all other outputs. The learning rate is tiny, so that the
    weights hardly change however often the step is made.

    Args:
        built: The model, which is put into training mode, and its inputs.
        mode: Returns the context of forward and loss.

    Raises:
        UnknownTargetError: The model has nothing to train.
    """
    import torch  # noqa: PLC0415

    model = built.model.train()
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    if not parameters:
        raise UnknownTargetError(f"{type(model).__name__} has no parameters to train")
    optimizer = torch.optim.SGD(parameters, lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        with mode():
            loss = _loss(model, model(*built.inputs))
        loss.backward()
        optimizer.step()

    step.__name__ = f"{type(model).__name__} training step"
    return step


def _differentiable(output: Any) -> Iterator[Any]:
    if hasattr(output, "requires_grad"):
        if output.requires_grad and output.is_floating_point():
            yield output
        return
    parts = output.values() if hasattr(output, "values") else output
    for part in parts if isinstance(parts, (list, tuple)) or hasattr(output, "values") else ():
        yield from _differentiable(part)


def _loss(model: Any, output: Any) -> Any:
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    terms = [
        cross_entropy(tensor, tensor.new_zeros(len(tensor)).long())
        if tensor.ndim == 2
        else tensor.float().square().mean()
        for tensor in _differentiable(output)
    ]
    if not terms:
        raise MeasurementError(
            f"{type(model).__name__} returned nothing that a loss can be made of; write the "
            "training step as a function, and measure path.py:function"
        )
    return sum(terms[1:], start=terms[0])
