"""Runs the compiled code of a layer beside the operators that were recorded, and compares outputs and gradients."""

import copy
import ctypes
import pathlib
import tempfile

import torch

from . import check, compiled, structure
from .check import shown
from .inputs import tensors
from .interpret import Interpreter, on_cpu
from .refused import Refused, named

aten = torch.ops.aten
HINT = "the compiler is at fault, or accel-export; train without compiled code"


class Code:
    """The compiled code of a layer, loaded into this process."""

    def __init__(self, description, code):
        self.description = description
        # The code is not linked with libtorch and finds its functions among those that are there for all libraries.
        ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
        with tempfile.TemporaryDirectory(prefix="accel-compiled-") as folder:
            for which, content in code.items():
                file = pathlib.Path(folder) / f"{which}.so"
                file.write_bytes(content)
                setattr(self, which, torch._C._aoti.AOTIModelContainerRunnerCpu(str(file), 1))

    @torch.no_grad()
    def run(self, call):
        """Returns the outputs, and the gradients by the places of what the code takes. Raises Refused if the code fails."""
        with named(f"the compiled code of '{call.layer.path}'", None, lambda error: HINT):
            return self.results(call)

    def results(self, call):
        torch.manual_seed(1)
        taken = [value.detach() for value in call.taken]
        results = self.forward.run(taken)
        orders = [gradient["order"] for gradient in self.description["output_gradients"]]
        values = {"taken": taken, "result": results, "gradient": list(map(in_order, call.tangents, orders))}
        wanted = [(name.rstrip("0123456789"), name) for name in self.description["backward_takes"]]
        made = self.backward.run([values[kind][int(name.removeprefix(kind))] for kind, name in wanted])
        return results[:self.description["outputs"]], dict(zip(self.description["gradients"], made, strict=True))


def in_order(tensor, dims):
    """Returns the tensor with its memory in the order of `dims`, the widest first."""
    return tensor.permute(dims).contiguous().permute([dims.index(dim) for dim in range(len(dims))])


class Call:
    """A call of a layer with `inputs`. `own` has the values of its parameters and buffers by their names in it."""

    def __init__(self, layer, description, inputs, own):
        self.layer, self.description, self.inputs = layer, description, inputs
        self.places = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        given = [own[take["own"]] if "own" in take else inputs[self.places[take["input"]]] for take in description["takes"]]
        self.taken = [value.detach().clone(memory_format=torch.contiguous_format).requires_grad_(take["gradient"])
                      for value, take in zip(given, description["takes"])]
        with torch.no_grad():
            outputs = self.outputs(self.taken)
        generator = torch.Generator().manual_seed(0)
        self.tangents = [torch.randn(outputs[gradient["output"]].shape, generator=generator).to(outputs[gradient["output"]].dtype)
                         for gradient in description["output_gradients"]]

    def outputs(self, taken, seed=1):
        """Returns what the operators of the layer give."""
        torch.manual_seed(seed)
        own, inputs = {}, list(self.inputs)
        for value, take in zip(taken, self.description["takes"]):
            if "own" in take:
                own[take["own"]] = value
            else:
                inputs[self.places[take["input"]]] = value
        return Interpreter(self.layer.module, {key: own[name] for key, name in self.layer.attributes.items()}).run(*inputs)

    def is_random(self):
        with torch.no_grad():
            return not all(map(torch.equal, self.outputs(self.taken, 1), self.outputs(self.taken, 2)))

    def interpreted(self, taken):
        """Returns outputs and gradients as Code.run() does."""
        outputs = self.outputs(taken)
        places = [place for place, value in enumerate(taken) if value.requires_grad]
        made = torch.autograd.grad([outputs[gradient["output"]] for gradient in self.description["output_gradients"]],
                                   [taken[place] for place in places], self.tangents, allow_unused=True)
        return outputs, dict(zip(places, made))

    def perturbed(self):
        """Returns what is taken with each number changed by a unit in its last place."""
        generator = torch.Generator().manual_seed(0)
        changed = [value.detach().clone() for value in self.taken]
        for value in changed:
            if value.is_floating_point():
                check.perturb(value, generator)
        return [value.requires_grad_(before.requires_grad) for value, before in zip(changed, self.taken)]

    def by_name(self, outputs, gradients):
        """Returns outputs and gradients as check.differences() takes them. A gradient that nothing gives is zero."""
        found = {}
        for place, (value, take) in enumerate(zip(self.taken, self.description["takes"])):
            if take["gradient"]:
                gradient = gradients.get(place)
                found[take.get("own") or f"input {take['input']}"] = torch.zeros_like(value) if gradient is None else gradient
        return torch.zeros(()), found, {f"output {place}": output.detach().float() for place, output in enumerate(outputs)}


def drop_alike(expected, found):
    """Makes numbers 0 that are infinite, or not numbers, in the same places of both."""
    for one, other in zip(expected[1:], found[1:]):
        for name in one.keys() & other.keys():
            if one[name].shape == other[name].shape:
                alike = (one[name].isnan() & other[name].isnan()) | (one[name].isinf() & (one[name] == other[name]))
                one[name], other[name] = one[name].masked_fill(alike, 0), other[name].masked_fill(alike, 0)


def without_dropout(layer):
    """Returns a copy of the layer whose dropout keeps everything."""
    layer = copy.copy(layer)
    layer.module = torch.fx.GraphModule(layer.module, copy.deepcopy(layer.module.graph))
    for node in layer.module.graph.nodes:
        if node.target is aten.dropout.default:
            node.args = (node.args[0], 0.0, *node.args[2:])
        elif node.target is aten.scaled_dot_product_attention.default and len(node.args) > 4:
            node.args = (*node.args[:4], 0.0, *node.args[5:])
    layer.module.recompile()
    return layer


class Judge:
    """Compares the code of each kind of layer with the first layer of the kind, at all `sets` of sizes."""

    def __init__(self, exported, subject, sets, autocast=None):
        self.exported, self.subject, self.sets = exported, subject, sets
        self.module, self.tolerance = on_cpu(exported.graph_module, autocast), check.TOLERANCES[autocast or subject.dtype]
        self.largest = 0.0
        self.skipped = []  # The layers that draw random numbers which nothing turns off.
        model = subject.model
        buffers = compiled.cast_buffers(check.names_of(model, "named_buffers"), subject.dtype, autocast)
        self.stored = {**exported.constants, **buffers, **check.names_of(model, "named_parameters")}
        self.has_values = all(map(structure.has_values, self.stored.values()))

    def __call__(self, layer, description, code):
        loaded = Code(description, code)
        with torch.random.fork_rng(devices=()):
            calls = list(self.calls_of(layer, description))
            if any(call.is_random() for _, call in calls):
                # The masks of the code are others than those of the layer. Without them the layer is compiled again.
                for where, call in calls:
                    self.require_repeatable(loaded, call, where)
                layer = without_dropout(layer)
                description, code = compiled.compile_layer(layer)
                loaded, calls = Code(description, code), list(self.calls_of(layer, description))
                if any(call.is_random() for _, call in calls):
                    self.skipped.append(layer.path)
                    return
            for where, call in calls:
                self.compare(loaded, call, where)

    def compare(self, code, call, where):
        expected, found = call.by_name(*call.interpreted(call.taken)), call.by_name(*code.run(call))
        drop_alike(expected, found)
        off = check.differences(expected, found)
        worst = max(off, key=off.get)
        if off[worst] > self.tolerance:
            perturbed = call.by_name(*call.interpreted(call.perturbed()))
            drop_alike(expected, perturbed)
            noise = check.differences(expected, perturbed)
            worst = max(off, key=lambda name: off[name] / check.tolerated(self.tolerance, noise[name]))
            if off[worst] > check.tolerated(self.tolerance, noise[worst]):
                raise Refused(f"the compiled code of '{call.layer.path}' is another layer at {where}: the largest difference is that of "
                              f"{worst}, {off[worst]:.2g} of its largest value\nhint: {HINT}")
        self.largest = max(self.largest, off[worst])

    def require_repeatable(self, code, call, where):
        """Recomputation needs the same numbers again."""
        one, again = code.run(call), code.run(call)
        for value, other in zip([*one[0], *one[1].values()], [*again[0], *again[1].values()]):
            if not torch.equal(value.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8)):
                raise Refused(f"the compiled code of '{call.layer.path}' draws other random numbers at {where} when torch's generator "
                              f"has the same state\nhint: {HINT}")

    def calls_of(self, layer, description):
        """Yields the sizes and the Call for each set of sizes. A model without values gets made ones, at the recorded sizes."""
        if not self.has_values:
            generator = torch.Generator().manual_seed(0)
            own = {name: made(self.stored[f"{layer.path}.{name}"], generator) for name in layer.attributes.values()}
            yield "the recorded sizes", Call(layer, description, [made(one, generator) for one in layer.examples], own)
            return
        own = {name: self.value_of(f"{layer.path}.{name}") for name in layer.attributes.values()}
        for seed, sizes in enumerate(self.sets):
            given = tensors(self.subject.inputs, sizes, seed)
            yield shown(sizes), Call(layer, description, self.inputs_of(layer, given), own)

    def value_of(self, name):
        """Returns a parameter or a buffer. Zeros alone, as a new adapter has, would hide the gradients of others."""
        value = self.stored[name].detach()
        if isinstance(self.stored[name], torch.nn.Parameter) and check.is_zero(value):
            value = torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name))).to(value.dtype) * 0.02
        return value

    @torch.no_grad()
    def inputs_of(self, layer, given):
        """Returns the inputs of a layer for the inputs `given` of the model."""
        signature, rest = self.exported.graph_signature, iter(given)
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        placeholders = self.exported.graph.find_nodes(op="placeholder")
        values = [self.stored[names[node.name]] if node.name in names else next(rest) for node in placeholders]
        record = Interpreter(self.module, names=[node.name for node in layer.inputs])
        record.run(*values)
        return [record.kept[node.name] for node in layer.inputs]


def made(example, generator):
    """Returns a value like a fake tensor or a symbolic size."""
    if not isinstance(example, torch.Tensor):
        return example.node.hint if isinstance(example, torch.SymInt) else example
    shape = [size.node.hint if isinstance(size, torch.SymInt) else size for size in example.shape]
    if not example.is_floating_point():
        return torch.full(shape, example.dtype == torch.bool, dtype=example.dtype)
    return (torch.randn(shape, generator=generator) * 0.1).to(example.dtype)
