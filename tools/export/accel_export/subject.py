"""A model as it is recorded: positional tensors in, a tuple of named tensors out."""

import contextlib
import dataclasses
import inspect

import torch

from . import structure, words
from .inputs import Input, Size
from .refused import Refused


@dataclasses.dataclass
class Subject:
    model: torch.nn.Module
    inputs: list[Input]
    sizes: dict[str, Size]
    outputs: list[str]
    dtype: torch.dtype = torch.float32  # The dtype of the parameters while the model computes.
    masters: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)  # What is stored instead of them.
    layers: list[str] = dataclasses.field(default_factory=list)
    shifts_labels: bool | None = None
    conversions: list[dict] = dataclasses.field(default_factory=list)  # Those of a directory with other names.
    words: type = words.Flags  # The names of the options in messages.

    def __post_init__(self):
        self.modes = [(name, module, module.training) for name, module in self.model.named_modules()]

    def train(self):
        """Puts each module into its mode of training, which is evaluation for one that its author leaves in it."""
        for _, module, training in self.modes:
            module.training = training
        return self.model

    def left_in_evaluation(self):
        """Returns the names of the outermost modules that stay in evaluation while the model trains."""
        left = {name for name, _, training in self.modes if not training}
        return [name for name, _, _ in self.modes if name in left and name.rpartition(".")[0] not in left]

    def set_dtype(self, dtype):
        """Casts the parameters to `dtype` as FSDP's mixed precision does, which leaves the buffers as they are. Their
        values in float32 stay in `masters`."""
        self.dtype = dtype
        casts = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if parameter.is_floating_point() and parameter.dtype != dtype:
                casts[id(parameter)] = parameter.data
                parameter.data = parameter.data.to(dtype)
            if id(parameter) in casts:
                self.masters[name] = casts[id(parameter)]
        self.inputs = [dataclasses.replace(item, example=item.example.to(dtype)) if item.example.is_floating_point() else item
                       for item in self.inputs]


def name_of_length(subject):
    """Returns the name of the first dimension that is not the batch."""
    return next((name for name in subject.sizes if name != "batch"), "length")


def named_tensors(result):
    """Returns the tensors of what forward gave, by name: a tensor, a sequence, a dict, or a dataclass of transformers."""
    if isinstance(result, torch.Tensor):
        return {"output": result}
    if isinstance(result, (tuple, list)):
        return {f"output_{i}": value for i, value in enumerate(result) if isinstance(value, torch.Tensor)}
    if not isinstance(result, dict) and dataclasses.is_dataclass(result):
        result = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    if isinstance(result, dict):
        return {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
    raise Refused(f"forward gives a {type(result).__name__}, and a model for accel gives tensors")


CHANGED = ("forward changes the parameter '{}' itself, which a sharded one would forget\n"
           "hint: train with the layer that does so replaced, or its setting off")


@contextlib.contextmanager
def unchanged(model):
    """Gives the buffers their values back, which a call in training may change. Raises Refused if a parameter changes."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    sums = sums_of(model)
    yield
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    for name, value in sums_of(model).items():
        if value != sums[name]:
            raise Refused(CHANGED.format(name))


def sums_of(model):
    """Returns the sum of each parameter that has values, to see whether one changes."""
    return {name: parameter.detach().sum(dtype=torch.float64).item() for name, parameter in model.named_parameters()
            if structure.has_values(parameter) and parameter.is_floating_point()}


def choose(result, names, words):
    found = named_tensors(result)
    for name in names:
        if name not in found:
            raise Refused(f"the model gives no output '{name}'; it gives {', '.join(found) or 'no tensor'}\nhint: see {words.outputs}")
    return tuple(found[name] for name in names)


def bind(model, names, outputs=None, arguments=None, words=words.Flags):
    """Replaces forward by one of positional tensors `names`. It gives a tuple of the `outputs`, or all if None. A second
    call replaces the first."""
    author = vars(model).get("authors_forward") or model.forward
    model.__dict__["authors_forward"] = author

    def forward(*tensors):
        result = author(**dict(zip(names, tensors)), **(arguments or {}))
        return choose(result, outputs if outputs is not None else list(named_tensors(result)), words)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    model.forward = forward
    return model


def require_no_hidden_change(model, words):
    """Raises Refused for modules whose forward does what a record of operators does not hold."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if getattr(module, "max_norm", None) is not None:
            raise Refused(f"module '{name}' ({kind}) has max_norm={module.max_norm}: its forward changes its weight, which a "
                          "sharded one would forget\nhint: train without max_norm")
        for owner in (module, getattr(module, "config", None)):
            for key in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
                value = getattr(owner, key, None)
                if isinstance(value, float) and value > 0:
                    raise Refused(f"{kind} has {key}={value}: it leaves out layers at random, and a record would leave out the same "
                                  f"ones for good\nhint: set it to 0 {words.value(key, '0')}")
            if getattr(owner, "apply_spec_augment", False) and max(owner.mask_time_prob, owner.mask_feature_prob) > 0:
                raise Refused(f"{kind} masks its input at random with NumPy (apply_spec_augment), and a record would have the same "
                              "mask for good\nhint: mask the data instead, and turn it off "
                              + words.value("apply_spec_augment", "false"))
