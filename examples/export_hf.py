"""Turns a Hugging Face causal-LM directory into a TorchScript file that accel trains.

    python export_hf.py MODEL_DIRECTORY OUT.pt [--weights]

Reads config.json and, with --weights, the weights. Without, the file holds the structure alone: its parameters are on the meta
device, so that a model of any size is exported in seconds, and `training.model.weights: MODEL_DIRECTORY` has every rank read its
own part of the original safetensors. Names are those of the original; `accel merge-weights CHECKPOINT OUT --copy-assets
MODEL_DIRECTORY` gives a directory that from_pretrained loads.

forward: input_ids [batch, length] of int64 -> (logits [batch, length, vocabulary],)
"""

import argparse
import json
import pathlib
import warnings

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM


def load(directory, with_weights):
    """The model in training mode, with the buffers that it really has."""
    if with_weights:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).train()
    config = AutoConfig.from_pretrained(directory)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    return model.train()


def trace(model):
    """Tracing runs the model, on the meta device if its parameters are there; then the buffers have to go there, too."""
    forward = model.forward
    model.forward = lambda input_ids: forward(input_ids=input_ids, use_cache=False, return_dict=False)[:1]
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    device = next(model.parameters()).device
    model.to(device)
    # A batch of one, or one token, would be taken for a constant.
    ids = torch.zeros((2, 16), dtype=torch.long, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the tracer, about shapes that it takes for constants.
        traced = torch.jit.trace(model, (ids,), check_trace=False, strict=False)
    for name, buffer in buffers.items():
        *path, last = name.split(".")
        owner = traced._c
        for part in path:
            owner = owner.getattr(part)
        owner.setattr(last, buffer)
    return traced


def notes(model):
    """What the file alone does not say: which classes are the layers, and which buffers no checkpoint has."""
    persistent = set(model.state_dict())
    return {"layer_classes": sorted(model._no_split_modules or []),
            "non_persistent": [name for name, _ in model.named_buffers() if name not in persistent]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--weights", action="store_true", help="put the weights into the file")
    options = parser.parse_args()
    model = load(options.directory, options.weights)
    extra = {"accel.json": json.dumps(notes(model))}
    torch.jit.save(trace(model), str(options.out), _extra_files=extra)
    print(f"{options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
