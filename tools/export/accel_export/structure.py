"""Models without values: parameters that take no memory, and their way into a file."""

import contextlib

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextlib.contextmanager
def parameters_on_meta():
    """Modules that are made within have their parameters on the meta device. Buffers have their values."""
    register = torch.nn.Module.register_parameter

    def register_on_meta(module, name, parameter):
        register(module, name, parameter)
        if parameter is not None:
            made = module._parameters[name]
            module._parameters[name] = torch.nn.Parameter(made.detach().to("meta"), requires_grad=made.requires_grad)

    torch.nn.Module.register_parameter = register_on_meta
    try:
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
