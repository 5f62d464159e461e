"""Loads checkpoints with Accelerate into an FSDP2 model and its optimizer, and compares the result with the zoo.

    python zoo_resume.py JOBS.json ANSWERS.json

JOBS is a list of `{"directory", "state", "expected", "optimizer"}`. "state" is FULL_STATE_DICT or SHARDED_STATE_DICT;
"expected" and "optimizer" are the zoo's files of the expected tensors. ANSWERS gets one text per job, which is empty if
nothing is wrong.
"""

import json
import os
import pathlib
import sys

import zoo_write  # It comes first because it sets the environment.

import torch

from zoo_state import difference, net, tensor_of


def other_net(dtype: torch.dtype) -> torch.nn.Module:
    model = net(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(tensor_of(999, tuple(parameter.shape)))
        model.steps.fill_(-1)
    return model


def resume(job: dict) -> str:
    from accelerate.utils.fsdp_utils import load_fsdp_model, load_fsdp_optimizer
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    expected = torch.load(job["expected"], weights_only=True)
    dtype = expected["embed.weight"].dtype
    with zoo_write.under_accelerate(other_net(dtype)) as (plugin, accelerator, model, optimizer):
        zoo_write.set_state_type(plugin, job["state"])
        load_fsdp_model(plugin, accelerator, model, job["directory"])
        load_fsdp_optimizer(plugin, accelerator, optimizer, model, job["directory"])
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        found = get_model_state_dict(model, options=options)
        state = zoo_write.whole_optimizer_state(model, optimizer)
    if not found:
        return ""  # Only rank 0 has the full state.
    wanted = torch.load(job["optimizer"], weights_only=True)
    problem = difference(found, expected) or difference(state["tensors"], wanted["tensors"])
    # torch broadcasts tuples as lists, so this compares JSON.
    if not problem and json.dumps(state["param_groups"]) != json.dumps(wanted["param_groups"]):
        problem = f"param_groups: {state['param_groups']}, expected {wanted['param_groups']}"
    return problem


def resume_all(rank: int, directory: pathlib.Path) -> None:
    answers = [resume(job) for job in json.loads(pathlib.Path(sys.argv[1]).read_text())]
    if rank == 0:
        pathlib.Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    if not zoo_write.on_ranks(resume_all, pathlib.Path(os.path.dirname(os.path.abspath(sys.argv[2])))):
        sys.exit("a rank failed")
