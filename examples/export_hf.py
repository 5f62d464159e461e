"""Turns a Hugging Face causal-LM directory into a TorchScript file that accel trains.

    python export_hf.py MODEL_DIRECTORY OUT.pt [--weights]

The script reads config.json and, with --weights, the weights. Without --weights, the file holds the structure: its
parameters are on the meta device, so a model of any size is exported in seconds. If the configuration of accel has
`training.model.weights: MODEL_DIRECTORY`, every rank reads its own part of the original safetensors. Parameters keep
their names. `accel merge-weights CHECKPOINT OUT --copy-assets MODEL_DIRECTORY` writes a directory that from_pretrained
loads.

Tracing records what the model does with one example. It freezes a loop over chunks, a branch on the length or a random
choice between layers as the example took it, and such a file would train another model. So a warning of the tracer is
an error, unless it is known to be harmless. Before the file is written, loss and gradients are compared with the
model's own at another length and batch size.

forward: input_ids [batch, length] of int64 -> (logits [batch, length, vocabulary],)
"""

import argparse
import contextlib
import json
import linecache
import os
import pathlib
import sys
import warnings

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

EXAMPLE = (2, 16)  # Batch size and length of the traced example. A size of 1 would be taken for a constant.
CHECKED_LENGTH = 150  # More than two chunks of 64, and not a multiple of 64.
CHECKED_PARAMETERS = 500_000_000  # A larger model is checked with fewer of its layers.
TOLERANCE = 1e-5  # Relative. Both sides do the same operations in the same order, so usually no bit differs.

# The tracer warns about these lines, but they have no effect for a causal mask without padding. An entry is the end
# of the file's name and text from the line.
HARMLESS = [
    ("transformers/masking_utils.py", ""),
    ("transformers/integrations/sdpa_attention.py", ""),
    ("torch/nn/functional.py", "if padding_idx >= weight.size(0)"),
    ("torch/_tensor.py", "split_size = int(split_size)"),  # Splits heads, in gptj and codegen.
    ("transformers/models/gpt_neo/modeling_gpt_neo.py", "mask_value = torch.tensor(mask_value"),
]


class Refused(Exception):
    """The model cannot be exported faithfully; the text says why and what to do."""


@contextlib.contextmanager
def named(step, on_meta):
    """Turns an error that torch raises in `step` into Refused."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        hint = ("some operations do not run on the meta device, where a file of the structure alone is made: try --weights"
                if on_meta else "this model cannot be traced")
        raise Refused(f"{step} fails: {reason}\nhint: {hint}") from error


def load(directory, with_weights):
    """Returns the model in training mode. Its buffers have values, even if its parameters are on the meta device."""
    if with_weights:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).train()
    config = AutoConfig.from_pretrained(directory)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    return model.train()


def is_harmless(warning, line, accepted):
    place = f"{warning.filename}:{warning.lineno}"
    return (any(warning.filename.endswith(name) and text in line for name, text in HARMLESS)
            or any(place.endswith(name) for name in accepted))


def require_no_frozen_choice(caught, accepted):
    """Raises Refused for the tracer's warnings that are not harmless. Lists each place once, with its source line."""
    places = {}
    for warning in caught:
        line = linecache.getline(warning.filename, warning.lineno).strip()
        if issubclass(warning.category, torch.jit.TracerWarning) and not is_harmless(warning, line, accepted):
            message = str(warning.message).split(". ")[0]
            places[f"{warning.filename}:{warning.lineno}"] = f"{message}\n    {line}"
    if not places:
        return
    listed = "\n".join(f"  {place}: {text}" for place, text in places.items())
    raise Refused(
        "tracing would freeze what these lines decide, as the traced example took them:\n" + listed +
        "\nhint: if a line decides nothing that training depends on, say so with --accept FILE:LINE; "
        "the comparison with the model's own loss and gradients is made all the same")


def refuse_hidden_changes(model):
    """Raises Refused for max_norm, because TorchScript drops its renormalisation."""
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None:
            raise Refused(f"module '{name}' ({type(module).__name__}) has max_norm={module.max_norm}: its forward changes "
                          "its weight, which a TorchScript file does not do\nhint: train without max_norm")


def logits_only(model):
    """Replaces forward with that of the file: input_ids -> (logits,). A second call changes nothing."""
    if "forward" not in vars(model):
        forward = model.forward
        model.forward = lambda input_ids: forward(input_ids=input_ids, use_cache=False, return_dict=False)[:1]
    return model


def trace(model, accepted=()):
    """Returns the traced model. Tracing runs the model on the device of its parameters, which may be meta, so the
    buffers move there. The traced model gets the original buffers."""
    refuse_hidden_changes(model)
    logits_only(model)
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    device = next(model.parameters()).device
    model.to(device)
    ids = torch.zeros(EXAMPLE, dtype=torch.long, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with named("torch.jit.trace", device.type == "meta"):
            traced = torch.jit.trace(model, (ids,), check_trace=False, strict=False)
    require_no_frozen_choice(caught, accepted)
    for name, buffer in buffers.items():
        *path, last = name.split(".")
        owner = traced._c
        for part in path:
            owner = owner.getattr(part)
        owner.setattr(last, buffer)
    return traced


def loss_and_gradients(forward, model, ids, buffers):
    """Runs one forward and backward. Every call uses the same buffers and the same random numbers."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    logits = forward(ids)[0]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def difference(found, expected, floor):
    """Returns the largest difference, relative to the largest expected value or to `floor`, whichever is larger. The
    result is infinite if only one side has the gradient."""
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    worst = (found - expected).abs().max() / expected.abs().max().clamp_min(floor)
    return float("inf") if worst.isnan() else worst.item()


def compare(model, traced, batch, length):
    """Returns the largest difference of loss and gradients. Raises Refused if it is above TOLERANCE, or if forward
    changes a parameter."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(length))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    expected_loss, expected = loss_and_gradients(model, model, ids, buffers)
    for name, parameter in model.named_parameters():
        if not torch.equal(parameter, parameters[name]):
            raise Refused(f"forward changes the parameter '{name}' itself, which a sharded one would forget\n"
                          "hint: train with the layer that does so replaced, or its setting off")
    del parameters
    try:
        loss, gradients = loss_and_gradients(traced, model, ids, buffers)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise Refused(f"the traced model fails where the model does not, at batch {batch}, length {length}: {reason}\n"
                      "hint: what depends on the length was frozen at the traced one; this model cannot be traced") from None
    # Some gradients are zero except for rounding errors, for example that of a key's bias.
    floor = 1e-3 * max(float(gradient.abs().max()) for gradient in expected.values() if gradient is not None)
    off = {name: difference(gradients[name], expected[name], floor) for name in expected}
    off["the loss"] = difference(loss, expected_loss, 0)
    worst = max(off, key=off.get)
    if off[worst] > TOLERANCE:
        raise Refused(f"the traced model is another one at batch {batch}, length {length}: loss {loss:.6f}, the model's own "
                      f"{expected_loss:.6f}; the largest difference is that of {worst}, {off[worst]:.2g} of its largest value\n"
                      "hint: a loop or a choice was frozen as the traced example took it; this model cannot be traced")
    return off[worst]


def parameters_of(config):
    with init_empty_weights():
        return AutoModelForCausalLM.from_config(config).num_parameters()


def checked_config(directory):
    """Halves the layers until the model has at most CHECKED_PARAMETERS, but keeps one layer of each kind. Returns the
    configuration, its number of layers, and the original number."""
    config = AutoConfig.from_pretrained(directory)
    kinds = getattr(config, "layer_types", None) or []
    layers = getattr(config, "num_hidden_layers", 0)
    least = max([2, *(kinds.index(kind) + 1 for kind in set(kinds))])
    count = layers
    while parameters_of(config) > CHECKED_PARAMETERS and count > least:
        count = max(least, count // 2)
        config.num_hidden_layers = count
        if kinds:
            config.layer_types = kinds[:count]
    return config, count, layers


def available_bytes():
    """Returns the memory that can be allocated without swapping."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def model_to_check(directory):
    """Returns the model with random values, for an export without weights. The second result says how many layers
    it has, and is empty if it has all."""
    config, count, layers = checked_config(directory)
    needed = 16 * parameters_of(config)  # The values, a copy of them and two sets of gradients take 4 bytes each.
    free = available_bytes()
    if needed > free:
        raise Refused(f"the comparison with the model's own loss needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are "
                      "free\nhint: export on a larger machine, or without the comparison with --no-check")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    return model, f" with {count} of its {layers} layers" if count < layers else ""


def check(model, traced, length, part=""):
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or CHECKED_LENGTH
    longest = length or min(CHECKED_LENGTH, limit)
    buffers = [(buffer, buffer.clone()) for buffer in traced.buffers()]
    # Like accel, this does not use the optimizing executor, which draws other random numbers.
    with torch.jit.optimized_execution(False):
        worst = max(compare(model, traced, batch, n) for batch, n in ((3, longest), (5, max(2, min(9, longest)))))
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    print(f"loss and gradients are the model's own{part}, at lengths up to {longest}: the largest difference is {worst:.1g} of "
          "the largest value")


def notes(model):
    """Returns the content of accel.json: the classes of the layers, and the buffers that no checkpoint has."""
    persistent = set(model.state_dict())
    return {"layer_classes": sorted(model._no_split_modules or []),
            "non_persistent": [name for name, _ in model.named_buffers() if name not in persistent]}


def export(options):
    model = load(options.directory, options.weights)
    extra = {"accel.json": json.dumps(notes(model))}
    traced = trace(model, options.accept)
    if options.check and options.weights:
        check(model, traced, options.length)
    elif options.check:
        real, part = model_to_check(options.directory)
        check(real, trace(real, options.accept), options.length, part)
    # An existing file is replaced only when the new one is complete.
    unfinished = options.out.with_name(f".{options.out.name}.incomplete")
    try:
        with named("torch.jit.save", not options.weights):
            torch.jit.save(traced, str(unfinished), _extra_files=extra)
        os.replace(unfinished, options.out)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"{options.out}: {options.out.stat().st_size} bytes")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--weights", action="store_true", help="put the weights into the file")
    parser.add_argument("--length", type=int, help="the sequence length that you will train with, for the comparison "
                        f"(default: {CHECKED_LENGTH}, or the model's number of positions if that is smaller)")
    parser.add_argument("--accept", action="append", default=[], metavar="FILE:LINE",
                        help="accept warnings about this line, which has no effect; the end of its path is enough")
    parser.add_argument("--no-check", dest="check", action="store_false",
                        help="do not compare with the model's own loss and gradients")
    options = parser.parse_args(arguments)
    try:
        export(options)
    except Refused as refused:
        sys.exit(f"export_hf.py: {options.directory}: {refused}")


if __name__ == "__main__":
    main()
