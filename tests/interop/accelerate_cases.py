"""What accel makes of each kind of file that accelerate writes, as the test expects it."""

import typing

from accelerate.utils import DistributedType
from accelerate_files import asked, basic, cluster_file, converted, fsdp, sagemaker_file, text, updated

STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]


class Case(typing.NamedTuple):
    make: typing.Callable
    machines: int = 1
    program: str | None = None  # What the refusal of `accel launch FILE -- PROGRAM` says; None: the file is accepted.
    training: str | None = None  # The same for a file to which a section `training` is added.
    warning: str | None = None  # What a warning about the training says.
    # The variables for a program that accelerate does not set alike; None: accelerate refuses the file.
    differs: frozenset | None = frozenset()
    training_keys: dict = {}  # Further keys of that section.
    plan: dict = {}  # What `accel plan --json` says: how the settings are understood.


def refused(make, why):
    """A file that is refused for a program and for a training."""
    return Case(make, program=why, training=why)


def trains_not(make, why):
    """A file that is handed on to a program, and refused for a training."""
    return Case(make, training=why)


def lacks(key, system):
    return f"'{key}' asks for {system}, which accel does not have"


def not_yet(key):
    return f"'{key}' is not supported yet"


ON_CPUS = "INDUCTOR' runs compiled code, which is for CPUs alone"


def several(count, answers=None):
    """The answers about several machines."""
    return {"different machines": count, "rank of this machine": 0, "IP address": "127.0.0.1", "port you will use": 1,
            **(answers or {})}


CASES: dict[str, Case] = {
    # Processes and machines.
    "no distributed training": Case(asked("no"), plan={"world_size": 1}),
    "no distributed training, on the CPU": Case(asked("no", answers={"CPU only": "yes"})),
    "no distributed training, numa efficiency": Case(asked("no", answers={"numa efficiency": "yes"}),
                                                     differs=frozenset({"ACCELERATE_CPU_AFFINITY"})),
    "no distributed training, some GPUs": Case(asked("no", answers={"by id": "0"})),
    "`accelerate config default`": Case(basic("no"), plan={"world_size": 1}),
    "`accelerate config default`, bf16": Case(basic("bf16")),
    "multi-CPU": Case(asked("cpu", answers={"How many processes": 2}), plan={"world_size": 2, "replicas": 2}),
    "multi-CPU, checks of operations": Case(asked("cpu", answers={"checked while running": "yes", "How many processes": 2})),
    "multi-CPU, mpirun": refused(asked("cpu", answers={"launch mpirun": "yes", "How many processes": 2}),
                                 "asks for mpirun, which accel does not have"),
    "multi-GPU": Case(asked("gpu", answers={"How many GPU": 2}), plan={"world_size": 2, "replicas": 2}),
    "multi-GPU, some GPUs": Case(asked("gpu", answers={"How many GPU": 2, "by id": "0,1"})),
    "multi-CPU, number of processes -1": Case(cluster_file(distributed_type=DistributedType.MULTI_CPU, use_cpu=True,
                                                                num_processes=-1), differs=None),
    "multi-CPU, two machines": Case(asked("cpu", answers=several(2, {"How many processes": 2})), machines=2,
                                    plan={"world_size": 2}),
    "multi-CPU, two machines in the cloud": Case(asked("cpu", answers=several(2, {
        "same local network": "no", "rendezvous backend": "static", "How many processes": 2})), machines=2),
    "multi-CPU, two machines, c10d": refused(asked("cpu", answers=several(2, {
        "same local network": "no", "rendezvous backend": "c10d", "How many processes": 2})),
        lacks("rdzv_backend: c10d", "torch's elastic rendezvous")),
    "FSDP 2, two machines": Case(fsdp(2, several(2)), machines=2, plan={"world_size": 2, "replicas": 1}),

    # FSDP.
    **{f"FSDP 1, {name}": Case(fsdp(1, {"sharding strategy": name}),
                               plan={"reshard_after_forward": name in ("FULL_SHARD", "HYBRID_SHARD"),
                                     "replicas": 2 if name == "NO_SHARD" else 1}) for name in STRATEGIES},
    **{f"FSDP 1, HYBRID_SHARD{suffix}, two machines": Case(
        fsdp(1, several(2, {"sharding strategy": f"HYBRID_SHARD{suffix}"})), machines=2, plan={"replicas": 2})
        for suffix in ("", "_ZERO2")},
    "FSDP 1, named layers": Case(fsdp(1, {"transformer layer class names": "Block"}, wraps_layers=False),
                                 plan={"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}),
    "FSDP 1, SIZE_BASED_WRAP": Case(fsdp(1, {"auto wrap policy": "SIZE_BASED_WRAP", "minimum number": 1000}, wraps_layers=False),
                                    plan={"auto_wrap_policy": "SIZE_BASED_WRAP"}),
    "FSDP 1, NO_WRAP": Case(fsdp(1, {"auto wrap policy": "NO_WRAP"}, wraps_layers=False), plan={"auto_wrap_policy": "NO_WRAP"}),
    **{f"FSDP 1, {name}": Case(fsdp(1, {"state dict type": name}))
       for name in ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")},
    "FSDP 1, NO_PREFETCH": Case(fsdp(1, {"backward prefetch": "NO_PREFETCH"})),
    "FSDP 1, BACKWARD_POST": Case(fsdp(1, {"backward prefetch": "BACKWARD_POST"}),
                                  warning="'fsdp_config.backward_prefetch: BACKWARD_POST' acts as BACKWARD_PRE"),
    "FSDP 1, forward prefetch": Case(fsdp(1, {"forward prefetch": "yes"})),
    "FSDP 1, without `use_orig_params`": Case(fsdp(1, {"use_orig_params": "no"}),
                                              warning="'fsdp_config.use_orig_params: false' has no effect"),
    "FSDP 1, no efficient loading, no broadcast": Case(
        fsdp(1, {"RAM efficient": "no", "broadcast module parameters": "no"}),
        warning="'fsdp_config.sync_module_states: false' has no effect"),
    "FSDP 1, offloading, activation checkpointing": Case(
        fsdp(1, {"offload parameters": "yes", "activation checkpointing": "yes"}),
        plan={"offload_params": True, "activation_checkpointing": True}),
    "FSDP 2": Case(fsdp(2), plan={"reshard_after_forward": True, "replicas": 1}),
    "FSDP 2, no resharding": Case(fsdp(2, {"resharding after forward": "no"}), plan={"reshard_after_forward": False}),
    "FSDP 2, SIZE_BASED_WRAP": Case(fsdp(2, {"auto wrap policy": "SIZE_BASED_WRAP", "minimum number": 1000}, wraps_layers=False),
                                    plan={"auto_wrap_policy": "SIZE_BASED_WRAP"}),
    "FSDP 2, FULL_STATE_DICT": Case(fsdp(2, {"state dict type": "FULL_STATE_DICT"})),
    "FSDP 2, offloading, activation checkpointing": Case(
        fsdp(2, {"offload parameters": "yes", "activation checkpointing": "yes", "RAM efficient": "no"}),
        plan={"offload_params": True, "activation_checkpointing": True},
        warning="'fsdp_config.cpu_ram_efficient_loading: false' has no effect"),
    "FSDP 1, `accelerate to-fsdp2`": Case(converted(fsdp(1, {"sharding strategy": "SHARD_GRAD_OP"})),
                                          plan={"reshard_after_forward": False}),

    # Other layouts of ranks.
    "FSDP 2, replicas": Case(fsdp(2, {"parallelism config": "yes", "replicate size": 2, "FSDP shard size": 2}, processes=4),
                             plan={"world_size": 4, "replicas": 2}),
    "FSDP 2, all sizes 1": Case(fsdp(2, {"parallelism config": "yes"}), plan={"replicas": 1}),
    "FSDP 2, tensor parallelism": trains_not(fsdp(2, {"parallelism config": "yes", "tensor parallelism": 2}),
                                             "'parallelism_config.tp_size: 2' needs a plan, and the model file has none"),
    # The model of the test has one input.
    "FSDP 2, context parallelism": Case(
        fsdp(2, {"parallelism config": "yes", "context parallelism size": 2, "communication strategy": "alltoall"}),
        training_keys={"model.inputs": "[position_ids]"}, plan={"world_size": 2, "replicas": 1},
        warning="'parallelism_config.cp_size: 2' runs as 'parallelism_config.sp_size: 2'"),
    "FSDP 2, sequence parallelism": Case(cluster_file(
        distributed_type=DistributedType.FSDP, num_processes=2, fsdp_config={"fsdp_version": 2},
        parallelism_config={"parallelism_config_sp_size": 2, "parallelism_config_sp_backend": "deepspeed",
                            "parallelism_config_sp_seq_length": "128", "parallelism_config_sp_seq_length_is_variable": False,
                            "parallelism_config_sp_attn_implementation": "sdpa"}),
        training_keys={"model.inputs": "[position_ids]"}, plan={"world_size": 2, "replicas": 1}),

    # Precision.
    "FSDP 2, bf16": Case(fsdp(2, precision="bf16")),
    "FSDP 1, fp16": Case(fsdp(1, precision="fp16")),
    "multi-GPU, fp8 by torchao": Case(asked("gpu", "fp8", {"How many GPU": 2, "FP8 backend": 0}), plan={"replicas": 2}),
    "multi-GPU, fp8 by Transformer Engine": trains_not(
        asked("gpu", "fp8", {"How many GPU": 2, "FP8 backend": 1, "GEMMS": "yes"}),
        lacks("fp8_config.backend: TE", "Transformer Engine")),
    "multi-GPU, fp8 by MS-AMP": trains_not(asked("gpu", "fp8", {"How many GPU": 2, "FP8 backend": 2}),
                                           lacks("fp8_config.backend: MSAMP", "MS-AMP")),
    "FSDP 2, fp8, its defaults": Case(cluster_file(
        distributed_type=DistributedType.FSDP, num_processes=2, mixed_precision="fp8", fsdp_config={"fsdp_version": 2})),
    "FSDP 2, fp8, gathered in bfloat16": Case(cluster_file(
        distributed_type=DistributedType.FSDP, num_processes=2, mixed_precision="fp8",
        fsdp_config={"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"},
        fp8_config={"backend": "AO", "enable_fsdp_float8_all_gather": False})),
    "SageMaker, fp8": refused(sagemaker_file({"mixed precision": "fp8"}), lacks("compute_environment: AMAZON_SAGEMAKER",
                                                                               "SageMaker")),

    # Other systems.
    "DeepSpeed": refused(asked("gpu", "bf16", {
        "use DeepSpeed": "yes", "ZeRO optimization": "3", "offload optimizer states": "nvme", "offload parameters?": "cpu",
        "gradient clipping? ": "yes", "deepspeed.zero.Init": "yes", "MoE": "yes", "MoE layer": "Moe", "How many GPU": 2}),
        lacks("distributed_type: DEEPSPEED", "DeepSpeed")),
    "DeepSpeed, a file of its own": refused(asked("gpu", answers={
        "use DeepSpeed": "yes", "json file": "yes", "path to the json": "ds.json", "How many GPU": 2}),
        lacks("distributed_type: DEEPSPEED", "DeepSpeed")),
    "DeepSpeed, two machines": refused(asked("gpu", answers=several(2, {
        "use DeepSpeed": "yes", "Type of launcher": "pdsh", "location of hostfile": "hosts", "exclusion filter string?": "yes",
        "exclusion filter string: ": "a:1", "inclusion filter string?": "yes", "inclusion filter string: ": "b:1",
        "How many GPU": 2})), lacks("distributed_type: DEEPSPEED", "DeepSpeed")),
    "Megatron-LM": refused(asked("gpu", answers={
        "Megatron-LM": "yes", "Tensor Parallelism degree": 2, "Pipeline Parallelism degree": 2, "How many GPU": 4}),
        lacks("distributed_type: MEGATRON_LM", "Megatron-LM")),
    "TPU": refused(asked("tpu"), lacks("distributed_type: XLA", "TPUs")),
    "TPU cluster": refused(asked("tpu", answers={
        "TPU cluster?": "yes", "name of your TPU": "pod", "zone of your TPU": "zone", "wish to run on startup in each pod? ": "yes",
        "located in a bash script": "no", "single command": "ls", "Compute VM instances": "a,b", "environment variables": "A=1"}),
        lacks("distributed_type: XLA", "TPUs")),
    **{f"multi-{name.upper()}": refused(asked(name, answers={f"How many {name.upper()}": 2}),
                                        lacks(f"distributed_type: MULTI_{name.upper()}", system))
       for name, system in [("xpu", "Intel GPUs"), ("hpu", "Gaudi accelerators"), ("npu", "Ascend NPUs"), ("mlu", "Cambricon MLUs"),
                            ("sdaa", "SDAA devices"), ("musa", "Moore Threads GPUs"), ("neuron", "AWS Neuron devices")]},
    "SageMaker": refused(sagemaker_file(), lacks("compute_environment: AMAZON_SAGEMAKER", "SageMaker")),
    "SageMaker, data parallelism": refused(
        sagemaker_file({"Docker image? ": "yes", "Enter your Docker image": "image", "input channels": "yes", "inputs TSV": "in",
                        "enable SageMaker metrics": "yes", "metrics TSV": "m", "distributed mode": 1, "How many machines": 2,
                        "checked while running": "yes"}), lacks("compute_environment: AMAZON_SAGEMAKER", "SageMaker")),
    "torch dynamo": trains_not(asked("no", answers={"torch dynamo": "yes"}), ON_CPUS),
    "torch dynamo, on the CPU": Case(asked("no", answers={"torch dynamo": "yes", "CPU only": "yes"})),
    "torch dynamo, all options": trains_not(asked("gpu", answers={
        "torch dynamo": "yes", "customize": "yes", "Which mode": 2, "fullgraph": "yes", "dynamic shape": "yes",
        "regional": "yes", "How many GPU": 2}), ON_CPUS),

    # Files of earlier versions.
    "earlier: `fp16: true`": Case(text({"distributed_type": "NO", "fp16": True, "num_processes": 1, "dynamo_backend": "NO"})),
    "earlier: `fp16: false`": Case(text({"distributed_type": "MULTI_CPU", "fp16": False, "num_processes": 2, "use_cpu": True})),
    "earlier: `fp16: true` that contradicts bf16": Case(
        text({"distributed_type": "NO", "fp16": True, "mixed_precision": "bf16"}),
        program="'fp16: true' contradicts 'mixed_precision: bf16'", training="'fp16: true' contradicts 'mixed_precision: bf16'"),
    "earlier: `dynamo_backend`": trains_not(text({"distributed_type": "NO", "dynamo_backend": "INDUCTOR"}),
                                            ON_CPUS),
    "earlier: FSDP": Case(text({
        "distributed_type": "FSDP", "num_processes": 2, "mixed_precision": "no", "downcast_bf16": "no", "use_cpu": True,
        "fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_backward_prefetch_policy": "NO_PREFETCH",
                        "fsdp_offload_params": False, "fsdp_sharding_strategy": 2, "fsdp_state_dict_type": "FULL_STATE_DICT",
                        "fsdp_transformer_layer_cls_to_wrap": "Block"}}), plan={"reshard_after_forward": False},
        differs=frozenset({"ACCELERATE_USE_CPU", "FSDP_BACKWARD_PREFETCH"})),
    "earlier: FSDP without prefixes": Case(text({
        "distributed_type": "FSDP", "num_processes": 2,
        "fsdp_config": {"min_num_params": 2000, "offload_params": False, "sharding_strategy": 1}}),
        plan={"reshard_after_forward": True}),
    "earlier: `mpirun_ccl`": refused(text({"distributed_type": "MULTI_CPU", "num_processes": 2, "use_cpu": True,
                                           "mpirun_config": {"mpirun_ccl": "1", "mpirun_hostfile": "hosts"}}),
                                     "asks for mpirun, which accel does not have"),
    "earlier: `accelerate config update`": Case(updated({"distributed_type": "NO", "fp16": True, "dynamo_backend": "NO"})),
    "earlier: `accelerate config update` with dynamo": trains_not(
        updated({"distributed_type": "NO", "dynamo_backend": "INDUCTOR"}),
        ON_CPUS),
}
