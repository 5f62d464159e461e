"""Models without values: parameters that take no memory, and their way into a file."""

import contextlib
import math

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode


class LargeOnMeta(TorchFunctionMode):
    """Makes tensors of more than LARGE elements on the meta device: the experts of a layer may take more than the memory."""

    LARGE = 2 ** 28
    MAKERS = (torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in self.MAKERS and not kwargs.get("device"):
            shape = kwargs.get("size", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
            if math.prod(shape) > self.LARGE:
                kwargs = {**kwargs, "device": "meta"}
        return function(*args, **kwargs)


@contextlib.contextmanager
def parameters_on_meta():
    """Modules that are made within have their parameters on the meta device, and so has every tensor that is too large
    for a buffer. Buffers have their values."""
    register = torch.nn.Module.register_parameter

    def register_on_meta(module, name, parameter):
        register(module, name, parameter)
        if parameter is not None:
            made = module._parameters[name]
            module._parameters[name] = torch.nn.Parameter(made.detach().to("meta"), requires_grad=made.requires_grad)

    torch.nn.Module.register_parameter = register_on_meta
    try:
        with LargeOnMeta():
            yield
    finally:
        torch.nn.Module.register_parameter = register


def on_cpu_without_values(model, dtype=torch.float32):
    """Replaces parameters on the meta device by fake ones on the CPU, so that a record has no device `meta` in it. Those
    of floating point get `dtype`. Tied parameters stay one."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    made = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.device.type != "meta":
                continue
            if id(parameter) not in made:
                with mode:
                    empty = torch.empty(parameter.shape, dtype=dtype if parameter.is_floating_point() else parameter.dtype)
                # The original is kept, so that its id stays its own.
                made[id(parameter)] = (torch.nn.Parameter(empty, requires_grad=parameter.requires_grad), parameter)
            module._parameters[name] = made[id(parameter)][0]
    return model


def kinds_of_layers(model, count):
    """Returns what each of the `count` layers is made of: the names and classes of its modules. Empty if the model has no
    list of so many."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return [tuple((name, type(part).__name__) for name, part in layer.named_modules()) for layer in module]
    return []


def has_values(tensor):
    return not isinstance(tensor, torch._subclasses.fake_tensor.FakeTensor) and tensor.device.type != "meta"


def ties(model):
    """Returns lists of the names of each parameter that has several."""
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


def without_values(parameter):
    """Returns a parameter of float32 on the meta device, of which torch.export.save writes an empty record."""
    dtype = torch.float32 if parameter.is_floating_point() else parameter.dtype
    empty = torch.empty_strided(parameter.shape, parameter.stride(), dtype=dtype, device="meta")
    return torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)


def stored_values(subject, with_values):
    """Returns what the file stores for each parameter: float32, or nothing for parameters without values."""
    stored, made = {}, {}
    for name, parameter in subject.model.named_parameters(remove_duplicate=False):
        if not with_values or not has_values(parameter):
            made.setdefault(id(parameter), without_values(parameter))
        elif name in subject.masters:
            made.setdefault(id(parameter), torch.nn.Parameter(subject.masters[name], requires_grad=parameter.requires_grad))
        else:
            made.setdefault(id(parameter), parameter)
        stored[name] = made[id(parameter)]
    return stored
