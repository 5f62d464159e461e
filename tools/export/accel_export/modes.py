"""Makes a traced file follow its mode, by the rules of accel when it opens one (src/train/graph/patch_traced.cpp)."""

import torch

FLAGS = ("train", "training", "use_input_stats")  # What operators call the argument that says the mode.
NORMS = ("aten::batch_norm", "aten::instance_norm")
WITH_MODES = tuple(f"torch.nn.modules.{part}." for part in ("dropout", "batchnorm", "instancenorm", "rnn"))
STATISTICS, ATTENTION_DROPOUT = 3, 4  # Places of arguments.


def follow(file):
    """Changes the graphs of a file that torch.jit.load has read and that has not run yet: constants that say the mode of
    training become the flag `training` of their module. A file must not be written after that."""
    modules = list(file.modules())
    scripted = scripted_classes(modules)
    done = set()
    # A wrapper or a loss that nobody has put into a mode is in training mode, too. The parts with modes tell.
    trains = file.training and any(module.training for module in modules if module._c.hasattr("training") and has_mode(module))
    for module in modules:
        for name in module._c._method_names():
            function = (module._c.qualified_name, name)
            if function in done:
                continue
            done.add(function)
            stays = trains and not module.training  # Its author left it in evaluation.
            if module._c.hasattr("training") and not stays and not is_scripted(module, scripted):
                graph = module._c._get_method(name).graph
                follow_in(graph, list(graph.nodes()), module.training)


def scripted_classes(modules):
    """Returns the classes that read their flag, and those of several modules. Tracing makes a class for each module, which
    never reads its flag."""
    reading, instances = set(), {}
    for module in modules:
        kind = module._c.qualified_name
        instances.setdefault(kind, set()).add(module._c)
        if any(reads_training(module._c._get_method(name).graph.nodes()) for name in module._c._method_names()):
            reading.add(kind)
    return reading, {kind for kind, members in instances.items() if len(members) > 1}


def reads_training(nodes):
    return any((node.kind() == "prim::GetAttr" and node.s("name") == "training")
               or any(reads_training(block.nodes()) for block in node.blocks()) for node in nodes)


def has_mode(module):
    """Whether a module is one of torch's that compute otherwise in evaluation."""
    return any(part in module._c.qualified_name for part in WITH_MODES)


def is_scripted(module, classes):
    reading, shared = classes
    kind = module._c.qualified_name
    if kind not in shared or kind in reading:
        return kind in reading
    inside = [part._c.qualified_name for part in module.modules()]
    return all(name in reading for name in inside if any(part in name for part in WITH_MODES))


def follow_in(graph, nodes, training):
    for node in nodes:
        for block in node.blocks():
            follow_in(graph, list(block.nodes()), training)
        # What an author scripted is meant, such as a constant True for a dropout that is always on.
        if not node.kind().startswith("aten::") or is_written(node):
            continue
        inputs = list(node.inputs())
        for place, name in enumerate(arguments_of(node)[:len(inputs)]):
            value = inputs[place].toIValue()
            if name in FLAGS and isinstance(value, bool) and value == training and not lacks_statistics(node):
                with graph.insert_point_guard(node):
                    node.replaceInput(place, flag(graph))
        if training and node.kind() == "aten::scaled_dot_product_attention" and inputs[ATTENTION_DROPOUT].toIValue():
            with graph.insert_point_guard(node):
                factor = graph.insert("aten::Float", [flag(graph)])
                node.replaceInput(ATTENTION_DROPOUT, graph.insert("aten::mul", [inputs[ATTENTION_DROPOUT], factor]))


def arguments_of(node):
    text = node.schema()
    if not any(name in text for name in FLAGS):
        return []
    return [argument.name for argument in torch._C.parse_schema(text).arguments]


def is_written(node):
    """Whether the file says that an author wrote the node in a scripted function. What tracing recorded has a list of
    Python frames instead of a file."""
    place = node.sourceRange()
    return "\nSerialized " in place and place.startswith('  File "')


def lacks_statistics(node):
    """Whether a norm has no running statistics, and uses those of the batch in evaluation, too."""
    return node.kind() in NORMS and list(node.inputs())[STATISTICS].node().mustBeNone()


def flag(graph):
    node = graph.insertNode(graph.create("prim::GetAttr", [next(iter(graph.inputs()))], 1))
    node.s_("name", "training")
    return node.output().setType(torch._C.BoolType.get())
