"""Compiles the layers of a record to machine code: a forward and a backward for each kind of layer, as AOTInductor makes
them. They go into the .pt2 file beside the program; accel's docs/formats.md has the format of their description."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import shutil
import tempfile
import zipfile
from unittest import mock

import torch

from .interpret import Interpreter, on_cpu, without_autocast
from .refused import Refused, named

VERSION = 3
INSTRUCTION_SET = "x86-64-v3"  # That of every server since 2015: AVX2 and FMA. torch's default is that of this machine alone.
FOLDER, DESCRIPTION = "compiled/", "extra/compiled.json"
SUMS = "need_use_acc_helper"  # Chooses how a sum is added up by the sizes of the example. Both ways hold for all sizes.


@dataclasses.dataclass
class Layer:
    """A layer cut out of a record: a graph that takes `inputs` and gives `outputs`."""

    path: str
    module: torch.fx.GraphModule  # Its parameters and buffers are attributes.
    attributes: dict[str, str]  # Their names below the layer, by the name of the attribute.
    inputs: list[torch.fx.Node]  # Values of the record. Sizes are among them.
    outputs: list[torch.fx.Node]
    examples: list  # What stands for each of `inputs`: a fake tensor or a symbolic size.

    def fingerprint(self):
        """A text that is equal for layers that compute the same with other parameters."""
        lines = [sorted(self.attributes.items()), [(str(e), getattr(e, "requires_grad", False)) for e in self.examples]]
        lines += lines_of(self.module)
        for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
            lines.append((name, str(tensor.dtype), str(tuple(tensor.shape)), tensor.requires_grad))
        return repr(lines)


def lines_of(module):
    """Describes the nodes of a graph without their names."""
    number, lines = {node: i for i, node in enumerate(module.graph.nodes)}, []
    for node in module.graph.nodes:
        target = "" if node.op == "placeholder" else str(node.target)
        if node.op == "get_attr" and isinstance(inner := getattr(module, node.target), torch.fx.GraphModule):
            target = lines_of(inner)
        lines.append((node.op, target, str(torch.fx.map_arg((node.args, node.kwargs), lambda a: f"%{number[a]}"))))
    return lines


def differentiable(exported):
    """Returns the nodes whose values depend on a parameter that is trained."""
    parameters = exported.graph_signature.inputs_to_parameters
    found = set()
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            name = parameters.get(node.name)
            depends = name is not None and exported.state_dict[name].requires_grad
        else:
            depends = any(argument in found for argument in node.all_input_nodes)
            depends = depends and node.target is not torch.ops.aten.detach.default and not is_without_gradients(node)
        value = node.meta.get("val")
        if depends and not (isinstance(value, torch.Tensor) and not value.is_floating_point()):
            found.add(node)
    return found


def is_without_gradients(node):
    return getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled" and node.args[0] is False


def calls_of(node):
    """Returns {key: path} of the calls of modules that a node is in."""
    return {key: path.split("@")[0] for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items()}


def span(exported, path):
    """Returns the nodes of the one call of the module at `path`. Raises Refused unless they lie together."""
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    keys = {key for node in nodes for key, module in calls_of(node).items() if module == path}
    if len(keys) != 1:
        raise Refused(f"'{path}' is called {len(keys)} times in a step, and compiled code is for layers that are called once")
    places = [i for i, node in enumerate(nodes) if path in calls_of(node).values()]
    inside = nodes[places[0]:places[-1] + 1]
    for node in inside:
        if calls_of(node) and path not in calls_of(node).values():
            raise Refused(f"'{path}' is interrupted by the operator {node.target} of another module")
    return inside


@dataclasses.dataclass
class Record:
    """A record as it trains, under autocast to the dtype `autocast` unless that is None."""

    exported: torch.export.ExportedProgram
    autocast: torch.dtype | None
    trained: set  # What differentiable() found.
    values: dict  # A fake tensor or a symbolic size for each node, by its name.


def record_of(exported, dtype, autocast=None):
    """Returns the Record of a model with parameters of `dtype`."""
    from torch._dispatch.python import enable_python_dispatcher

    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    if autocast is not None:
        placeholders = [node.name for node in exported.graph.find_nodes(op="placeholder")]
        buffers = exported.graph_signature.inputs_to_buffers
        record = Interpreter(on_cpu(exported.graph_module, autocast), names=values)
        with torch.no_grad(), fake_mode_of(exported), enable_python_dispatcher():
            values |= cast_buffers({name: values[name] for name in placeholders if name in buffers}, dtype, autocast)
            record.run(*(values[name] for name in placeholders))
        values |= record.kept
    return Record(exported, autocast, differentiable(exported), values)


def cast_buffers(buffers, dtype, autocast):
    """Casts them as FSDP version 1 does, whose parameters have the dtype of autocast."""
    return {name: value.to(dtype) if autocast == dtype and value.is_floating_point() else value for name, value in buffers.items()}


def cut(record, path):
    """Returns the Layer at `path`."""
    exported, values = record.exported, record.values
    signature = exported.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    nodes = span(exported, path)
    inside, outer = set(nodes), {}
    for node in nodes:
        outer.update((argument, None) for argument in node.all_input_nodes if argument not in inside)
    root, graph, copies = torch.nn.Module(), torch.fx.Graph(), {}
    attributes, inputs, examples = {}, [], []
    for node in outer:
        if node.op != "get_attr" and node.name not in stored:
            if node.name in signature.inputs_to_lifted_tensor_constants:
                raise Refused(f"'{path}' has a tensor as a constant, '{node.name}'\nhint: make it a buffer of the layer")
            copies[node] = graph.placeholder(node.name)
            inputs.append(node)
            examples.append(example_of(values[node.name], node in record.trained))
    for node in outer:
        if node.op == "get_attr":  # The graph of an operator that has one.
            setattr(root, node.target, getattr(exported.graph_module, node.target))
            copies[node] = graph.get_attr(node.target)
        elif node.name in stored:
            name = stored[node.name]
            if not name.startswith(path + "."):
                raise Refused(f"'{path}' reads '{name}', which lies outside of it")
            attribute = f"own_{len(attributes)}"
            attributes[attribute] = name.removeprefix(path + ".")
            value = example_of(values[node.name], node in record.trained)
            if node.name in signature.inputs_to_parameters:
                root.register_parameter(attribute, torch.nn.Parameter(value.detach(), requires_grad=value.requires_grad))
            else:
                root.register_buffer(attribute, value)
            copies[node] = graph.get_attr(attribute)
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    for node in outputs:
        if not isinstance(node.meta["val"], torch.Tensor):
            raise Refused(f"'{path}' gives '{node.name}', which is not a tensor")
    graph.output(tuple(copies[node] for node in outputs))
    module = on_cpu(torch.fx.GraphModule(root, graph), record.autocast)
    return Layer(path, module, attributes, inputs, outputs, examples)


def example_of(value, needs_gradient):
    """Returns a contiguous fake tensor like `value`: compiled code relies on the strides of its example. A size is itself."""
    if not isinstance(value, torch.Tensor):
        return value
    with value.fake_mode:
        return torch.empty(value.shape, dtype=value.dtype).requires_grad_(needs_gradient)


def joint_of(layer):
    """Returns the graphs of forward and backward, and the descriptors of what forward takes and of what the layer and its
    derivative give."""
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd.descriptors import TangentAOTInput
    from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import partition_fn
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.virtualized import V

    found = {}

    def keep(which):
        def compiler(module, example_inputs):
            found[which] = module
            return module.forward
        return compiler

    tensors = [example for example in layer.examples if isinstance(example, torch.Tensor)]
    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, layer.module, tuple(layer.examples), decompositions=select_decomp_table())
        graph = joint.graph_module.graph
        takes = [node.meta["desc"] for node in graph.find_nodes(op="placeholder")]
        gives = graph.output_node().meta["desc"]
        # No view of a parameter may be saved, because the parameter's memory is freed until backward.
        with functorch_config.patch(recompute_views=True), V.set_fake_mode(detect_fake_mode(tensors)):
            aot_compile_joint_with_descriptors(joint, partition_fn=partition_fn, fw_compiler=keep("forward"),
                                               bw_compiler=keep("backward"))
    if len(found) < 2:  # torch makes the derivative of a view itself.
        raise Refused(f"'{layer.path}' gives a view of an input, or nothing that depends on a parameter")
    return found["forward"], found["backward"], [d for d in takes if not isinstance(d, TangentAOTInput)], gives


def drop_sizes(module, path):
    """Computes each input that is a size from the sizes of the tensors among the inputs: compiled code takes tensors alone."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    graph, sizes = module.graph, {}
    placeholders = graph.find_nodes(op="placeholder")
    for node in placeholders:
        value = node.meta["val"]
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                sizes.setdefault(size.node.expr, (node, dim))
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        for node in placeholders:
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                continue
            values = {}
            for symbol in value.node.expr.free_symbols:
                if symbol not in sizes:
                    raise Refused(f"'{path}' depends on a size that none of its inputs has")
                source, dim = sizes[symbol]
                values[symbol] = graph.call_function(torch.ops.aten.sym_size.int, (source, dim))
                values[symbol].meta["val"] = source.meta["val"].shape[dim]
            proxies = {symbol: torch.fx.Proxy(size) for symbol, size in values.items()}
            result = sympy_interp(PythonReferenceAnalysis, proxies, value.node.expr).node
            result.meta["val"] = value
            node.replace_all_uses_with(result)
            graph.erase_node(node)
    module.recompile()


def order_of(value):
    """Returns the dimensions from the widest stride to the narrowest."""
    def hint(size):
        return size.node.hint if isinstance(size, torch.SymInt) else size
    return sorted(range(value.dim()), key=lambda dim: (-hint(value.stride(dim)), dim))


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def tensor_text(value):
    return {"dtype": name_of(value.dtype), "shape": [s if isinstance(s, int) else str(s) for s in value.shape]}


def taken(layer, node, descriptor, place_of):
    """Describes a tensor that forward takes: a parameter or a buffer under its name below the layer, or an input."""
    if hasattr(descriptor, "target"):
        source = getattr(layer.module, descriptor.target)
        text = {"own": layer.attributes[descriptor.target]}
    else:
        source = layer.examples[descriptor.idx]
        text = {"input": place_of[descriptor.idx]}
    return {**text, **tensor_text(node.meta["val"]), "gradient": source.requires_grad}


def refuse_changes(layer, results):
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    for result in results:
        if isinstance(result, InputMutationAOTOutput):
            changed = result.mutated_input
            name = layer.attributes[changed.target] if hasattr(changed, "target") else layer.inputs[changed.idx].name
            raise Refused(f"'{layer.path}' changes '{name}' in forward, and compiled code changes nothing")


def gradient_of_output(layer, tangent, outputs):
    """Describes a gradient that backward takes. Outputs that depend on nothing that is trained have none."""
    from torch._functorch._aot_autograd.descriptors import PlainAOTOutput, TangentAOTInput

    descriptor, value = tangent.meta.get("desc"), tangent.meta["val"]
    output = descriptor.output if isinstance(descriptor, TangentAOTInput) else None
    if not isinstance(output, PlainAOTOutput) or outputs[output.idx].meta["val"].shape != value.shape:
        raise Refused(f"the backward of '{layer.path}' takes the gradient '{tangent.name}', which is of no output ({descriptor})")
    return {"output": output.idx, **tensor_text(value), "order": order_of(value)}


def compile_layer(layer):
    """Returns the description of a layer's code, and the code {"forward": bytes, "backward": bytes}."""
    forward, backward, descriptors, gives = joint_of(layer)
    results, gradients = gives[:len(gives) - len(descriptors)], gives[len(gives) - len(descriptors):]
    refuse_changes(layer, results)
    tensors = [i for i, example in enumerate(layer.examples) if isinstance(example, torch.Tensor)]
    place_of = {index: place for place, index in enumerate(tensors)}
    pairs = [(node, descriptor) for node, descriptor in zip(forward.graph.find_nodes(op="placeholder"), descriptors)
             if isinstance(node.meta["val"], torch.Tensor)]
    takes = [taken(layer, node, descriptor, place_of) for node, descriptor in pairs]
    sources = {node.name: f"taken{i}" for i, (node, _) in enumerate(pairs)}
    number_of = {descriptor: i for i, (_, descriptor) in enumerate(pairs)}

    given = list(forward.graph.output_node().args[0])
    outputs = given[:len(results)]
    saved = [node for node in given[len(results):] if node.name not in sources and isinstance(node.meta["val"], torch.Tensor)]
    storages = {node.meta["val"].untyped_storage()._cdata for node, _ in pairs}
    for node in [*outputs, *saved]:
        if node.name in sources or node.meta["val"].untyped_storage()._cdata in storages:
            raise Refused(f"'{layer.path}' saves a view of an input or of a parameter")
    sources.update((node.name, f"result{len(outputs) + i}") for i, node in enumerate(saved))
    forward.graph.output_node().args = (tuple(outputs + saved),)
    drop_sizes(forward, layer.path)
    drop_sizes(backward, layer.path)

    wants, tangents = [], []
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name in sources:
            wants.append(sources[node.name])
        elif node.name.startswith("tangents"):
            wants.append(f"gradient{len(tangents)}")
            tangents.append(gradient_of_output(layer, node, outputs))
        else:
            raise Refused(f"the backward of '{layer.path}' takes '{node.name}', which nothing gives")
    made = [(node, number_of[gradient.grad_of]) for node, gradient in zip(backward.graph.output_node().args[0], gradients)
            if node is not None]
    backward.graph.output_node().args = (tuple(node for node, _ in made),)
    description = {"takes": takes, "outputs": len(outputs), "backward_takes": wants, "output_gradients": tangents,
                   "gradients": [number for _, number in made]}
    code = {which: code_of(module, layer.path) for which, module in (("forward", forward), ("backward", backward))}
    return description, code


def code_of(module, path):
    """Returns the shared library of a graph."""
    module.recompile()
    examples = tuple(node.meta["val"] for node in module.graph.find_nodes(op="placeholder"))
    files = torch._inductor.aot_compile(module, examples, options={
        "aot_inductor.package": True, "aot_inductor.link_libtorch": False, "aot_inductor.check_lowerbound": False})
    libraries = [file for file in files if str(file).endswith(".so")]
    others = [file for file in files if str(file).endswith(".json") and "_metadata" not in str(file)]
    if len(libraries) != 1 or others:
        raise Refused(f"'{path}' has an operator that compiled code calls through Python's torch, or has code in several files")
    return pathlib.Path(libraries[0]).read_bytes()


@contextlib.contextmanager
def portable():
    """Makes inductor compile for INSTRUCTION_SET and for any number of threads. Its own flag is -march=native; the last of
    several counts. Inductor would try whether vectors can be used, with a library that lacks torch's as ours do, and write
    loops of single numbers, because that one cannot be loaded. Its cache is of no use to others and goes; compiled headers, which
    take hundreds of MB and more time than they save, would stay in the temporary folder."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise Refused("there is no C++ compiler: --compile needs g++, or the one that CXX names")
    if platform.machine() != "x86_64" or not torch.cpu._is_avx2_supported():
        raise Refused(f"--compile makes code for {INSTRUCTION_SET}, and this processor is another")
    with tempfile.TemporaryDirectory(prefix="accel-compile-") as folder:
        wrapper = pathlib.Path(folder) / "g++"
        wrapper.write_text(f'#!/bin/sh\nexec "{compiler}" "$@" -march={INSTRUCTION_SET}\n')
        wrapper.chmod(0o700)
        cache = mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(pathlib.Path(folder) / "cache"))
        with cache, torch._inductor.config.patch({"cpp.cxx": (str(wrapper),), "cpp.simdlen": 256, "cpp.vec_isa_ok": True,
                                                  "cpp.dynamic_threads": True, "aot_inductor.precompile_headers": False}):
            yield


def refuse_batch_norms(layer, path, is_fsdp_1):
    for name, module in layer.named_modules():
        if is_fsdp_1 and isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise Refused(f"'{path}.{name}' is a batch norm, which FSDP version 1 leaves in float32\nhint: train with version 2")


def refuse_conditions(exported, known):
    """Raises Refused if compiling has made a condition on the sizes that the record does not have: nothing checks it."""
    for guard in fake_mode_of(exported).shape_env.guards[known:]:
        place = guard.sloc.framework_loc
        if getattr(place, "name", "") != SUMS:
            raise Refused(f"the compiled code would hold only if {guard.expr} ({place})")


def fake_mode_of(exported):
    for node in exported.graph.nodes:
        if isinstance(value := node.meta.get("val"), torch.Tensor) and getattr(value, "fake_mode", None) is not None:
            return value.fake_mode
    raise Refused("the record has no sizes that vary")


def compile_layers(exported, subject, judge=None, memory=1.0, autocast=None):
    """Compiles the layers of a record. Returns the description of the code, and the files by their names. Layers that
    differ in their parameters alone share their code. `judge(layer, description, code)` gets each kind of layer, and raises
    Refused if its code is wrong. `memory` is the share of activations that forward may keep for backward, of those that it
    keeps with 1; backward computes the others again. `autocast` is the dtype of autocast under which the layers compute."""
    import torch._inductor
    from torch._functorch import config as functorch_config

    paths = [name for name, module in subject.model.named_modules() if type(module).__name__ in subject.layers]
    if not paths:
        raise Refused("--compile compiles layers, and the model has none\nhint: name their classes with --layers")
    known = len(fake_mode_of(exported).shape_env.guards)
    packages, units, files, places = [], {}, {}, {}
    errors = named("--compile", None, lambda error: "train without compiled code")
    with functorch_config.patch(activation_memory_budget=memory), portable(), without_autocast(), errors:
        record = record_of(exported, subject.dtype, autocast)
        for path in paths:
            refuse_batch_norms(subject.model.get_submodule(path), path, subject.dtype == autocast)
            layer = cut(record, path)
            key = layer.fingerprint()
            if key not in places:
                subject_text = type(subject.model.get_submodule(path)).__name__
                description, code = compile_layer(layer)
                if judge is not None:
                    judge(layer, description, code)
                place = places[key] = len(packages)
                for which, content in code.items():
                    files[f"{FOLDER}{place}_{which}.so"] = content
                packages.append({"class": subject_text, **description, "bytes": {which: len(content) for which, content in code.items()}})
            names = [node.name for node, example in zip(layer.inputs, layer.examples) if isinstance(example, torch.Tensor)]
            units[path] = {"package": places[key], "inputs": names}
    refuse_conditions(exported, known)
    return {"version": VERSION, "torch": torch.__version__.partition("+")[0], "device": "cpu", "instruction_set": INSTRUCTION_SET,
            "dtype": name_of(subject.dtype), "autocast": "" if autocast is None else name_of(autocast), "packages": packages, "units": units}, files


def add(exported, subject, path, judge=None, memory=1.0, autocast=None):
    """Compiles the layers and adds the code to the file at `path`. Returns the description."""
    description, files = compile_layers(exported, subject, judge, memory, autocast)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{DESCRIPTION}", json.dumps(description))
        for name, content in files.items():
            archive.writestr(f"{root}/{name}", content)
    return description
