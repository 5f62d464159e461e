"""The Python API, for models of your own."""

import copy
import inspect
import random
import traceback

import torch

from . import check as checking
from . import notes, structure
from .exporter import Exporter, Options, is_program, refuse_contradictions
from .inputs import Input, default_dims, sizes_of
from .refused import Refused, innermost, module_of, named
from .subject import Subject, bind, choose, named_tensors, require_no_hidden_change, unchanged
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

    Raises Refused if the file would be another model. A copy of `model` is exported, and compared with `model` itself first. Modules
    that are in evaluation mode in a model in training mode stay so. A model in evaluation mode is exported as its train() leaves it."""
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
    require_no_hidden_change(author, Arguments)
    require_no_hooks(author)
    has_all_values = all(map(structure.has_values, author.parameters()))

    def copied():
        with named("copy.deepcopy", author, lambda error: "a model is exported from a copy; see the reason above"):
            return copy.deepcopy(author)

    def make(dtype):
        model = copied()
        if not model.training:
            model.train()
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

    if not has_all_values:
        weights = False
        if check:
            raise Refused("the model has parameters on the meta device, so that nothing can be compared\n"
                          "hint: export it with values and weights=False, or with check=False")
    options = Options(is_program(path, format), weights, accel, check, tuple(accept), say, overwrite,
                      Arguments, compile, compile_memory, compile_autocast)
    refuse_contradictions(options, dtype)
    exporter = Exporter(path, options)
    exporter.program()  # What stands in the way of writing is said before anything is computed.
    if check:
        require_same(author, copied(), inputs, outputs)
    if not author.training:
        say("the model is in evaluation mode, and is exported as model.train() leaves it")
    if check and dtype != torch.float32:
        exporter.check_alone(lambda: make(torch.float32))
    # A file of the structure alone is compared before its values are left out.
    exporter.export(lambda: make(dtype), None if weights else lambda: make(dtype))


def require_no_hooks(model):
    """Raises Refused for hooks on parameters, which a copy does not have."""
    for name, parameter in model.named_parameters():
        for attribute, register in (("_backward_hooks", "register_hook"),
                                    ("_post_accumulate_grad_hooks", "register_post_accumulate_grad_hook")):
            if getattr(parameter, attribute, None):
                raise Refused(f"parameter '{name}' has a hook on its gradient ({register}), and a file holds the operators of "
                              "forward alone\nhint: remove the hook; to train a part of a parameter, let forward compute with "
                              "torch.where(mask, parameter, parameter.detach())")


class Uses(torch.overrides.TorchFunctionMode):
    """Raises an error in the first function that takes `tensor`."""

    def __init__(self, tensor):
        super().__init__()
        self.tensor = tensor

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if any(value is self.tensor for value in torch.utils._pytree.tree_leaves((args, kwargs))):
            raise RuntimeError
        return function(*args, **(kwargs or {}))


def require_same(author, model, inputs, outputs):
    """Raises Refused if the model of the author, as it was given, and its copy `model` do not compute the same, or if either
    computes with a parameter that it does not have. The author's model is left as it was."""
    gradients = [(parameter, parameter.grad) for parameter in author.parameters()]
    state = random.getstate()

    def run(module):
        own = {id(tensor) for tensor in [*module.parameters(), *module.buffers(), *(item.example for item in inputs)]}

        def call():
            result = module(**{item.name: item.example.clone() for item in inputs})  # A forward may change its input.
            return choose(result, outputs or list(named_tensors(result)), Arguments)

        def outside(loss):
            variables = [function.variable for function in checking.functions_of(loss) if type(function).__name__ == "AccumulateGrad"]
            return [variable for variable in variables if id(variable) not in own]

        def look(loss):
            # What forward itself makes, as enable_input_require_grads() does, is another tensor in another call.
            if found := outside(loss):
                again = outside(checking.probe(checking.flat(call()), names))
                for variable in found:
                    if any(variable is other for other in again):
                        refuse_outside(author, module, variable, call)

        with torch.no_grad(), unchanged(module):
            names = outputs or list(named_tensors(module(**{item.name: item.example.clone() for item in inputs})))
        side = checking.Side(module, names, lambda: None, call)
        try:
            return side.run([], True, look)
        finally:
            side.restore()

    try:
        with torch.random.fork_rng(devices=[]):
            try:
                found = run(model)  # First, because it may change a parameter.
            except Refused:
                raise
            except Exception:  # The record or the comparison fails of the same, and says where.
                return
            with named("the model itself", author, lambda error: "a copy of it does not fail: see the reason above"):
                off = checking.differences(run(author), found)
    finally:
        random.setstate(state)
        for parameter, gradient in gradients:
            parameter.grad = gradient
    worst = max(off, key=off.get)
    if off[worst] > checking.TOLERANCES[torch.float32]:
        raise Refused(f"a copy of the model (copy.deepcopy) is another model: the largest difference is that of {worst}, "
                      f"{off[worst]:.2g} of its largest value\nhint: a copy has no hooks on gradients, and a function that refers to the "
                      "model still refers to the original: let forward do what they do")


def refuse_outside(author, module, tensor, call):
    name = next((name for name, parameter in author.named_parameters() if parameter is tensor), None)
    place = ""
    try:
        with Uses(tensor):
            call()
    except RuntimeError as error:
        inside, line = module_of(error, module), innermost(traceback.extract_tb(error.__traceback__))
        place = (f"\n  in module '{inside}'" if inside else "") + (f"\n  at {line}" if line else "")
    what = (f"a parameter of shape {list(tensor.shape)} that the model does not have" if name is None else
            f"the original's parameter '{name}' in a copy of the model, too")
    raise Refused(f"forward computes with {what}, and a file would hold it as a constant{place}\n"
                  "hint: register it as a parameter of the module that computes with it, and read it from self")


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
