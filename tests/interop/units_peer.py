"""Writes the units that Accelerate's fsdp2_prepare_model makes, in one process on the CPU.

    python units_peer.py JOB.json

JOB is a list of {"model": a name in zoo_models, "policy": an auto-wrap policy, "classes", "min_num_params", "out"}. The
file "out" gets {parameter: unit}. A unit is named by its modules, joined with " + "; the root's name is empty. A
parameter in two units has both names, joined with " and ".
"""

import json
import pathlib
import sys
import types
import warnings

import torch
import torch.distributed as dist
import transformers
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils import fsdp_utils
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import zoo_models  # noqa: E402

prepare_policy = fsdp_utils.fsdp2_prepare_auto_wrap_policy


def policy_without_containers(plugin, model):
    """Returns Accelerate's policy without the containers that its size policy may choose and fully_shard refuses."""
    policy = prepare_policy(plugin, model)
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    return policy and (lambda module: policy(module) and not isinstance(module, containers))


def units_of(case):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = zoo_models.models()[case["model"]].make()
    # A user passes the model itself to Accelerate. The zoo's wrapper around it only computes the loss.
    prefix, prepared = ("model.", model.model) if isinstance(getattr(model, "model", None), transformers.PreTrainedModel) else ("", model)
    try:
        getattr(prepared, "get_input_embeddings", lambda: None)()
    except NotImplementedError:  # fsdp2_prepare_model fails on image models without input embeddings.
        prepared.get_input_embeddings = lambda: None
    first = {}  # The first name of each parameter.
    canonical = {name: first.setdefault(parameter, name)
                 for name, parameter in prepared.named_parameters(remove_duplicate=False)}
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy=case["policy"], transformer_cls_names_to_wrap=case.get("classes"),
        min_num_params=case.get("min_num_params"), cpu_ram_efficient_loading=False, reshard_after_forward=True)
    accelerator = types.SimpleNamespace(state=types.SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no",
                                        is_main_process=True, device=torch.device("cpu"),
                                        torch_device_mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("dp_shard",)),
                                        parallelism_config=types.SimpleNamespace(fsdp_dim_names=("dp_shard",)))
    fsdp_utils.fsdp2_prepare_model(accelerator, prepared)

    names = {module: name for name, module in prepared.named_modules()}
    members = {}
    for module, name in names.items():
        if isinstance(module, FSDPModule):
            members.setdefault(module._get_fsdp_state(), []).append(name)
    units = {}
    for state, modules in members.items():
        group = state._fsdp_param_group
        for parameter in group.fsdp_params if group else ():
            info = parameter._module_info
            owner = names[info.module]
            fqn = canonical[f"{owner}.{info.param_name}" if owner else info.param_name]
            unit = " + ".join(prefix + name for name in modules) if modules != [""] else ""
            units.setdefault(prefix + fqn, []).append(unit)
    assert units.keys() == {prefix + name for name in canonical.values()}
    return {name: " and ".join(sorted(of_it)) for name, of_it in units.items()}


def main():
    fsdp_utils.fsdp2_prepare_auto_wrap_policy = policy_without_containers
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for case in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        pathlib.Path(case["out"]).write_text(json.dumps(units_of(case)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
