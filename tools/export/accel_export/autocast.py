"""Applies the autocast blocks of a TorchScript file by the rules of accel (src/train/graph/passes/autocast_block.cpp). torch itself
does so in its optimizing executor alone."""

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

BLOCKS = []  # Those that a running file is in.


def enter(device, enabled, dtype):
    """Within a block no cast is kept, as in accel."""
    BLOCKS.append(_enter_autocast(device, dtype, enabled, False))


def leave():
    _exit_autocast(BLOCKS.pop())


LIBRARY = torch.library.Library("accel_export", "DEF")
for schema, function in (("enter_autocast(str device, bool enabled, ScalarType dtype) -> ()", enter), ("exit_autocast() -> ()", leave)):
    LIBRARY.define(schema, alias_analysis="CONSERVATIVE")  # What comes before and behind stays there.
    LIBRARY.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")


def obey(file):
    """Changes the graphs of a file that torch.jit.load has read and that has not run yet."""
    done = set()
    for module in file.modules():
        for name in module._c._method_names():
            function = (module._c.qualified_name, name)
            if function not in done:
                done.add(function)
                graph = module._c._get_method(name).graph
                for node in [*graph.findAllNodes("prim::Enter"), *graph.findAllNodes("prim::Exit")]:
                    if str(next(node.inputs()).type()).endswith("amp.autocast_mode.autocast"):
                        obey_at(graph, node)


def obey_at(graph, node):
    block = next(node.inputs())
    with graph.insert_point_guard(node):
        if node.kind() == "prim::Exit":
            graph.insertNode(graph.create("accel_export::exit_autocast", 0))
            return
        attributes = []
        for name, kind in (("device", torch._C.StringType), ("_enabled", torch._C.BoolType), ("fast_dtype", torch._C.IntType)):
            attribute = graph.insertNode(graph.create("prim::GetAttr", [block], 1))
            attribute.s_("name", name)
            attributes.append(attribute.output().setType(kind.get()))
        graph.insertNode(graph.create("accel_export::enter_autocast", attributes, 0))
