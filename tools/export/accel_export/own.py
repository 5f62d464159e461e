"""The Python API, for models of your own."""

import copy
import inspect

import torch

from . import notes, structure
from .exporter import Exporter, Options, is_program, refuse_contradictions
from .inputs import Input, default_dims, sizes_of
from .refused import Refused
from .subject import Subject, bind, named_tensors, require_no_hidden_change, unchanged
from .words import Arguments


def export(model, example_inputs, path, *, dims=None, outputs=None, layers=None, format=None, dtype=torch.float32,
           weights=True, lengths=None, compile=False, compile_memory=1.0, compile_autocast=None, accel=None, check=True, accept=(),
           overwrite=False, say=print):
    """Writes `model` to `path` (.pt2 by torch.export, or .pt by tracing) after comparing the file with it.

    example_inputs: a tensor, a sequence of tensors in forward's order, or a dict of them by forward's names.
    dims: names the dimensions of each input, such as {"image": ("batch", None, "height", "width")}. Those of one name are
        equal, and None is a fixed size. Without it dimension 0 is the batch and dimension 1 of integers the length.
    outputs: the names of forward's tensors to keep, if it gives a dict or a dataclass; all by default.
    layers: classes that become units; by default those of repeated layers.
    weights: False writes the structure alone.
    lengths: names of dimensions of which the example's size is the only one that trains.
    compile: add machine code of the layers, which accel runs with dynamo_backend: INDUCTOR. It needs g++.
    compile_memory: of the activations that a compiled layer would keep for its backward, keep at most this share, from 0 to 1,
        and compute the others again.
    compile_autocast: torch.bfloat16 or torch.float16 compiles for training under autocast: mixed_precision without FSDP, or
        with FSDP version 1 if dtype is the same.
    overwrite: replace a file at `path`.

    Raises Refused if the file would be another model. A copy of `model` is exported, in training mode."""
    if format not in (None, "pt2", "torchscript"):
        raise Refused(f"format is {format!r}; expected 'pt2', 'torchscript' or None")
    if dtype not in notes.NAMES_OF_DTYPES:
        raise Refused(f"dtype is {dtype!r}; expected torch.float32, torch.bfloat16 or torch.float16")
    if compile_autocast not in (None, torch.bfloat16, torch.float16):
        raise Refused(f"compile_autocast is {compile_autocast!r}; expected torch.bfloat16, torch.float16 or None")
    inputs = inputs_of(model, example_inputs, dims or {})
    sizes = sizes_of(inputs)
    for name in lengths or ():
        if name not in sizes:
            raise Refused(f"lengths names '{name}', and the inputs have the dimensions {', '.join(sizes) or 'of fixed sizes alone'}\n"
                          "hint: dims gives dimensions their names")
        sizes[name] = type(sizes[name])(sizes[name].recorded, (sizes[name].recorded,) * 2, given=True)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise Refused(f"parameter '{name}' is of {parameter.dtype}, and a file has parameters of float32\n"
                          "hint: export model.float(), with dtype=torch.bfloat16 if it is to compute in that")
    if not weights and not is_program(path, format):
        raise Refused("weights=False: the structure alone of a model of your own is written as .pt2\n"
                      "hint: give path a name that ends in .pt2, and no format='torchscript'")
    author = model

    def make(dtype):
        model = copy.deepcopy(author).train()
        require_no_hidden_change(model, Arguments)
        if not has_all_values:
            structure.on_cpu_without_values(model)
        with torch.no_grad(), unchanged(model):
            found = named_tensors(model(**{item.name: item.example for item in inputs}))
        subject = Subject(model, inputs, dict(sizes), list(outputs or found), words=Arguments)
        bind(model, [item.name for item in inputs], outputs, words=Arguments)
        subject.layers = [] if layers == [] else notes.layer_classes(model, Arguments, layers)
        if dtype != torch.float32:
            subject.set_dtype(dtype)
        return subject

    has_all_values = all(map(structure.has_values, model.parameters()))
    if not has_all_values:
        weights = False
        if check:
            raise Refused("the model has parameters on the meta device, so that nothing can be compared\n"
                          "hint: export it with values and weights=False, or with check=False")
    options = Options(is_program(path, format), weights, accel, check, tuple(accept), say, overwrite,
                      Arguments, compile, compile_memory, compile_autocast)
    refuse_contradictions(options, dtype)
    exporter = Exporter(path, options)
    if check and dtype != torch.float32:
        exporter.check_alone(lambda: make(torch.float32))
    # A file of the structure alone is compared before its values are left out.
    exporter.export(lambda: make(dtype), None if weights else lambda: make(dtype))


def inputs_of(model, examples, dims):
    if isinstance(examples, torch.Tensor):
        examples = (examples,)
    arguments = inspect.signature(model.forward).parameters
    if not isinstance(examples, dict):
        if len(examples) > len(arguments):
            raise Refused(f"example_inputs has {len(examples)} tensors, and forward takes {', '.join(arguments) or 'nothing'}")
        examples = dict(zip(arguments, examples, strict=False))
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    for name, tensor in examples.items():
        if name not in arguments and not takes_any:
            raise Refused(f"example_inputs names '{name}', and forward takes {', '.join(arguments) or 'nothing'}")
        if not isinstance(tensor, torch.Tensor):
            raise Refused(f"example_inputs: '{name}' is a {type(tensor).__name__}, and a model for accel takes tensors")
    for name, given in dims.items():
        if name not in examples:
            raise Refused(f"dims names the input '{name}', and example_inputs has {', '.join(examples)}")
        if len(given) != examples[name].dim():
            raise Refused(f"dims gives '{name}' {len(given)} dimensions, and its example has {examples[name].dim()}")
    return [Input(name, tensor, tuple(dims.get(name) or default_dims(name, tensor))) for name, tensor in examples.items()]
