"""Configuration files after the shape of those that public repositories ship, and what accel says about each.

The names say where files of that shape are found. Each file is the keys that `accelerate config` writes into every file,
with changes, or a text of its own where quoting, syntax or brevity matter.
"""

import typing

COMMON = {"compute_environment": "LOCAL_MACHINE", "debug": False, "downcast_bf16": "no", "machine_rank": 0,
          "main_training_function": "main", "mixed_precision": "bf16", "num_machines": 1, "rdzv_backend": "static",
          "same_network": True, "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False, "use_cpu": False}
OLD = {"compute_environment": "LOCAL_MACHINE", "deepspeed_config": {}, "fsdp_config": {}, "machine_rank": 0,
       "main_process_ip": None, "main_process_port": None, "main_training_function": "main", "num_machines": 1,
       "num_processes": 1, "use_cpu": False}
FSDP1 = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_backward_prefetch": "BACKWARD_PRE",
         "fsdp_cpu_ram_efficient_loading": True, "fsdp_forward_prefetch": False, "fsdp_offload_params": False,
         "fsdp_sharding_strategy": "FULL_SHARD", "fsdp_state_dict_type": "SHARDED_STATE_DICT",
         "fsdp_sync_module_states": True, "fsdp_use_orig_params": True}
FSDP2 = {"fsdp_activation_checkpointing": False, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
         "fsdp_cpu_ram_efficient_loading": True, "fsdp_offload_params": False, "fsdp_reshard_after_forward": True,
         "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_version": 2}
ZERO3 = {"deepspeed_multinode_launcher": "standard", "offload_optimizer_device": "none", "offload_param_device": "none",
         "zero3_init_flag": True, "zero3_save_16bit_model": True, "zero_stage": 3}
DYNAMO = {"dynamo_backend": "INDUCTOR", "dynamo_mode": "max-autotune", "dynamo_use_dynamic": False,
          "dynamo_use_fullgraph": False}


class File(typing.NamedTuple):
    content: dict | str
    refusal: str | None = None  # What the error says; None: the file is taken.
    warning: str | None = None
    # What accelerate does otherwise, in words; the test shows that it does.
    otherwise: str | None = None


def of(kind, processes=None, /, **keys):
    document = {**COMMON, "distributed_type": kind, **({} if processes is None else {"num_processes": processes})}
    return {key: value for key, value in {**document, **keys}.items() if value is not ...}


def fsdp(section, processes=8, /, changes=None, **keys):
    return of("FSDP", processes, fsdp_config={**section, **(changes or {})}, **keys)


def lacks(system):
    return f"asks for {system}, which accel does not have"


def deepspeed(section, processes=8, /, **keys):
    return File(of("DEEPSPEED", processes, deepspeed_config=section, **keys), lacks("DeepSpeed"))


def sizes(replicate=1, shard=1, tensor=1, context=1):
    return {"parallelism_config": {f"parallelism_config_{name}_size": value for name, value in
                                   {"dp_replicate": replicate, "dp_shard": shard, "tp": tensor, "cp": context}.items()}}


MPI = "accelerate starts one process and leaves the others to mpirun"
ONE = "'num_processes: 8' has no effect: 'distributed_type: NO' runs one process"
ADDRESS = "machines need main_process_ip, the address of machine 0"
UNKNOWN = "accelerate refuses the file, too"

FILES: dict[str, File] = {
    # One process.
    "trl, one GPU with 8 processes": File(of("NO", 8, gpu_ids="all"), warning=ONE),
    "trl, one GPU, another quoting": File("distributed_type: \"NO\"\nmixed_precision: 'bf16'\nnum_processes: 8\n", warning=ONE),
    "accelerate template, one GPU": File('distributed_type: "NO"\ngpu_ids: "0"\nmixed_precision: bf16\n'),
    "accelerate template, fp8": File('distributed_type: "NO"\nmixed_precision: "fp8"\nfp8_config:\n  backend: TE\n'
                                     "  amax_history_len: 1024\n  fp8_format: E4M3\n  interval: 1\n  margin: 0\n"
                                     "  override_linear_precision: [false, false, false]\n  use_autocast_during_eval: false\n"),
    "accelerate tests, 0.11": File({**OLD, "distributed_type": "NO", "mixed_precision": "no"}),
    "accelerate tests, 0.12": File({**OLD, "distributed_type": "NO", "mixed_precision": "no", "downcast_bf16": "no"}),
    "accelerate tests, one process": File("compute_environment: LOCAL_MACHINE\ndebug: true\nnum_processes: 1\ndistributed_type: 'NO'"),
    "accelerate tests, sections of others": File({
        "compute_environment": "LOCAL_MACHINE", "debug": True, "num_processes": 1, "distributed_type": "NO",
        "fsdp_config": {"fsdp_sync_module_states": False}, "deepspeed_config": {"deepspeed_config_file": "path/to/be/ignored"}}),
    "accelerate tests, unknown keys": File({**OLD, "distributed_type": "NO", "mixed_precision": "no", "invalid_key": "x"},
                                           "unknown key 'invalid_key' at the top level", otherwise=UNKNOWN),
    "stable diffusion trainer, null keys": File({**OLD, "distributed_type": "NO", "mixed_precision": "fp16", "command_file": None,
                                                 "commands": None, "dynamo_backend": "NO", "gpu_ids": "0", "tpu_name": None,
                                                 "megatron_lm_config": {}}),
    "stable diffusion trainer, a misspelt key": File({**OLD, "distributed_type": "NO", "downcase_fp16": "NO"},
                                                     "unknown key 'downcase_fp16' at the top level", otherwise=UNKNOWN),
    "notebook, NO without quotes": File("compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nnum_processes: 1\ngpu_ids: '0'\n"
                                        "mixed_precision: bf16\nuse_cpu: false\n"),
    "notebook, three keys": File("compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\n"),
    "cluster script, an address for one process": File(of("NO", 1, main_process_ip="127.0.0.1", main_process_port=9898)),
    "laptop, on the CPU": File(of("NO", 1, use_cpu=True, mixed_precision="no")),
    "trainer image, dynamo": File(of("NO", 1, dynamo_config=DYNAMO, enable_cpu_affinity=True, gpu_ids="all"),
                                  otherwise="accelerate passes over the key of ACCELERATE_CPU_AFFINITY"),
    "course, dynamo and ipex": File(of("NO", 1, dynamo_config=DYNAMO, ipex_config={"ipex": True}, use_cpu=True),
                                    lacks("Intel's extension for PyTorch"), otherwise=UNKNOWN),
    "cluster script, no ipex": File(of("NO", 1, ipex_config={"ipex": False}), otherwise="accelerate 1.15 refuses the section"),
    "course, ipex": File(of("NO", 1, ipex_config={"ipex": True}, use_cpu=True), lacks("Intel's extension for PyTorch"),
                         otherwise=UNKNOWN),

    # Several GPUs.
    "trl, GPUs": File(of("MULTI_GPU", 8, gpu_ids="all")),
    "alignment-handbook, GPUs": File(of("MULTI_GPU", 8, gpu_ids="all", main_process_port=29501)),
    "open-r1, DDP": File(of("MULTI_GPU", 8, gpu_ids="all")),
    "accelerate template, GPUs": File("distributed_type: MULTI_GPU\nmachine_rank: 0\nnum_machines: 1\nnum_processes: 8\n"
                                      "gpu_ids: all\nmixed_precision: bf16\n"),
    "accelerate template, two machines": File(
        "distributed_type: MULTI_GPU\nmachine_rank: 0\nmain_process_ip: '10.0.0.1'\nmain_process_port: 9999\nnum_machines: 2\n"
        "num_processes: 8\nrdzv_backend: static\nsame_network: false\n"),
    "accelerate tests, fp8": File(of("MULTI_GPU", 2, gpu_ids="all", mixed_precision="fp8", fp8_config={
        "amax_compute_algo": "max", "amax_history_len": 1024, "backend": "TE", "fp8_format": "E4M3", "interval": 1, "margin": 0,
        "override_linear_precision": "(false, false, false)", "use_autocast_during_eval": False}),
        otherwise="accelerate takes the letters of the list that is a text"),
    "accelerate tests, downcast": File(of("MULTI_GPU", 2, downcast_bf16="no", mixed_precision="no")),
    "accelerate tests, debug": File(of("MULTI_GPU", 2, debug=True)),
    "LLaMA-Factory, LoRA": File(of("MULTI_GPU", 4, gpu_ids="all", mixed_precision="fp16", debug=...)),
    "notebook, two GPUs": File(of("MULTI_GPU", 2, gpu_ids="0,1")),
    "notebook, five keys": File("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
                                "mixed_precision: fp16\ngpu_ids: all\n"),
    "container, one process of GPUs": File(of("MULTI_GPU", 1, downcast_bf16=False, main_process_ip=None, main_process_port=None)),
    "cluster script, processes by a flag": File(of("MULTI_GPU"), otherwise="accelerate wants the flag --num_processes"),
    "vision trainer, c10d on one machine": File(of("MULTI_GPU", 6, gpu_ids="0,1,2,3,4,5", rdzv_backend="c10d")),
    "guide, c10d on two machines": File(of("MULTI_GPU", 8, num_machines=2, main_process_ip="192.168.1.100",
                                           main_process_port=29500, rdzv_backend="c10d"), lacks("torch's elastic rendezvous")),
    "guide, dynamo": File(of("MULTI_GPU", 8, dynamo_config={**DYNAMO, "dynamo_use_fullgraph": True}, main_process_ip="localhost",
                             main_process_port=12376)),
    "video trainer, dynamo": File(of("MULTI_GPU", 4, dynamo_backend="INDUCTOR")),
    "supercomputer, the second of two machines": File(of("MULTI_GPU", 16, num_machines=2, machine_rank=1, gpu_ids="all",
                                                         main_process_ip="node01", main_process_port=6000)),
    "supercomputer, no address": File(of("MULTI_GPU", 16, num_machines=2, gpu_ids="all"), ADDRESS),
    "ray, GPUs of two machines": File(of("MULTI_GPU", 2, num_machines=2, main_process_ip="", main_process_port=1, gpu_ids="all"),
                                      ADDRESS),

    # Several processes on CPUs.
    "stable diffusion guide, CPUs": File(of("MULTI_CPU", 4, use_cpu=True, mixed_precision="no"), otherwise=MPI),
    "reinforcement learning, CPUs": File(of("MULTI_CPU", 4, use_cpu=True, mixed_precision="no", tpu_env=...), otherwise=MPI),
    "ray, CPUs of two machines": File(of("MULTI_CPU", 1, use_cpu=True, num_machines=2, main_process_ip="", main_process_port=1),
                                      ADDRESS),
    "accelerate tests, mpirun with ipex": File(of("MULTI_CPU", 16, use_cpu=True, num_machines=4, main_process_ip="127.0.0.1",
                                                  main_process_port=29500, ipex_config={"ipex": True},
                                                  mpirun_config={"mpirun_ccl": "1", "mpirun_hostfile": "/home/user/hostfile"}),
                                               lacks("Intel's extension for PyTorch"), otherwise=UNKNOWN),
    "peft, mpirun": File(of("MULTI_CPU", 2, use_cpu=True, main_process_ip="127.0.0.1", main_process_port=29500,
                            mpirun_config={"mpirun_ccl": "0", "mpirun_hostfile": "/tmp/hosts"}), lacks("mpirun")),

    # FSDP, version 1.
    "trl, FSDP 1": File(fsdp(FSDP1, changes={"fsdp_activation_checkpointing": False, "fsdp_version": 1},
                             enable_cpu_affinity=False)),
    "trl, QLoRA": File(fsdp(FSDP1, changes={"fsdp_offload_params": True, "fsdp_use_orig_params": False})),
    "alignment-handbook, FSDP": File(fsdp({"fsdp_backward_prefetch_policy": "BACKWARD_PRE",
                                           **{key: value for key, value in FSDP1.items() if key != "fsdp_backward_prefetch"}}),
                                     otherwise="accelerate passes over the older key of FSDP_BACKWARD_PREFETCH"),
    "open-r1, FSDP": File(fsdp(FSDP1, changes={"fsdp_activation_checkpointing": False, "fsdp_offload_params": True})),
    "peft, FSDP": File(fsdp(FSDP1, changes={"fsdp_use_orig_params": False})),
    "LLaMA-Factory, FSDP with offloading": File(fsdp(FSDP1, 2, changes={
        "fsdp_offload_params": True, "fsdp_state_dict_type": "FULL_STATE_DICT"}, mixed_precision="fp16")),
    "accelerate, FSDP for Slurm": File({"distributed_type": "FSDP", "fsdp_config": {**FSDP1, "fsdp_activation_checkpointing": False}},
                                       otherwise="accelerate wants the flag --num_processes"),
    "accelerate template, FSDP": File({"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8,
                                       "fsdp_config": {**FSDP1, "fsdp_min_num_params": 1, "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
                                                       "fsdp_state_dict_type": "FULL_STATE_DICT"}}),
    "accelerate tests, FSDP of 0.x": File({**OLD, "distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {
        "fsdp_sharding_strategy": 1, "fsdp_offload_params": False, "fsdp_min_num_params": 2000}}),
    "accelerate tests, no section": File(of("FSDP", 4, mixed_precision="no")),
    "cloud guide, strategy as a number": File(fsdp({
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_backward_prefetch_policy": "BACKWARD_PRE",
        "fsdp_offload_params": False, "fsdp_sharding_strategy": 1, "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}, 16, num_machines=2, deepspeed_config={}), ADDRESS),
    "notebook, FSDP in JSON": File('{"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 2, "fsdp_config":'
                                   ' {"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_offload_params": false}}'),
    "notebook, several layers": File(fsdp(FSDP1, 2, changes={"fsdp_transformer_layer_cls_to_wrap": "T5Block, BertLayer"}),
                                     otherwise="accelerate keeps the blank in FSDP_TRANSFORMER_CLS_TO_WRAP"),
    "notebook, no RAM efficient loading": File(fsdp(FSDP1, 2, changes={"fsdp_cpu_ram_efficient_loading": False},
                                                    mixed_precision="fp16")),
    "notebook, HYBRID_SHARD": File(fsdp(FSDP1, changes={"fsdp_sharding_strategy": "HYBRID_SHARD"})),
    "benchmark, by size, c10d on two machines": File(
        fsdp(FSDP1, 16, changes={"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 100000000}, num_machines=2,
             rdzv_backend="c10d"), lacks("torch's elastic rendezvous")),
    "axolotl guide, a key of torch's FSDP": File(fsdp(FSDP1, 2, changes={"fsdp_limit_all_gathers": True}),
                                                 "unknown key 'fsdp_limit_all_gathers' in 'fsdp_config'",
                                                 otherwise="accelerate passes over the key"),

    # FSDP, version 2.
    "trl, FSDP 2": File(fsdp(FSDP2, enable_cpu_affinity=False)),
    "trl, FSDP 2 for two GPUs": File(fsdp(FSDP2, 2, changes={"fsdp_activation_checkpointing": True}, **sizes(shard=2))),
    "trl, context parallelism": File(fsdp(FSDP2, 2, **sizes(context=2))),
    "accelerate, context parallelism": File(fsdp(FSDP2, **sizes(shard=2, context=4))),
    "accelerate, tensor parallelism": File(fsdp(FSDP2, changes={"fsdp_cpu_ram_efficient_loading": False},
                                                **sizes(replicate=2, shard=2, tensor=2))),
    "LLaMA-Factory, FSDP 2": File(fsdp(FSDP2, changes={"fsdp_state_dict_type": "SHARDED_STATE_DICT", "fsdp_offload_params": True})),
    "diffusers, FSDP 2 with keys of version 1": File({"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {
        **FSDP2, "fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_forward_prefetch": True, "fsdp_sync_module_states": False,
        "fsdp_cpu_ram_efficient_loading": False, "fsdp_use_orig_params": False,
        "fsdp_transformer_layer_cls_to_wrap": "ZImageTransformerBlock"}}),
    "cluster guide, FSDP 2 on eight machines": File(
        fsdp(FSDP2, 64, changes={"fsdp_transformer_layer_cls_to_wrap": "Qwen3DecoderLayer"}, num_machines=8, rdzv_backend="c10d"),
        lacks("torch's elastic rendezvous")),

    # DeepSpeed.
    "trl, ZeRO 1": deepspeed({"deepspeed_multinode_launcher": "standard", "gradient_accumulation_steps": 1, "zero_stage": 1}),
    "trl, ZeRO 2": deepspeed({**ZERO3, "zero_stage": 2, "zero3_init_flag": False}),
    "trl, ZeRO 3 for seven GPUs": deepspeed(ZERO3, 7),
    "trl, Ulysses sequence parallelism": deepspeed(
        {**ZERO3, "seq_parallel_communication_data_type": "bf16"}, 4, parallelism_config={
            "parallelism_config_dp_shard_size": 2, "parallelism_config_cp_size": 2, "parallelism_config_cp_backend": "deepspeed",
            "parallelism_config_cp_seq_length_is_variable": True,
            "parallelism_config_cp_attn_implementation": "flash_attention_2"}),
    "diffusers, ZeRO 2": deepspeed({"gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "offload_optimizer_device": "cpu",
                                    "offload_param_device": "cpu", "zero3_init_flag": False, "zero_stage": 2}, 1),
    "blog, a JSON file of DeepSpeed": deepspeed({"deepspeed_config_file": "/path/to/zero2.json", "zero3_init_flag": False}, 2),
    "guide, a batch size for DeepSpeed": deepspeed({"zero_stage": 2, "train_micro_batch_size_per_gpu": 2}),
    "notebook, DeepSpeed's own sections": deepspeed({
        "zero_stage": 3, "stage3_prefetch_bucket_size": "5e7", "zero_allow_untested_optimizer": True,
        "fp16": {"enabled": True, "loss_scale": 0}, "offload_optimizer": {"device": "cpu", "pin_memory": True}}, 2,
        dynamo_config=DYNAMO),

    # Other systems.
    "accelerate tests, Megatron-LM": File("compute_environment: LOCAL_MACHINE\ndistributed_type: MEGATRON_LM\nnum_processes: 1\n"
                                          "megatron_lm_config:\n  megatron_lm_recompute_activations: false\n", lacks("Megatron-LM")),
    "skill, Megatron-LM with a key of its own": File(of("MEGATRON_LM", 8, megatron_lm_config={
        "megatron_lm_pp_degree": 2, "megatron_lm_tp_degree": 2, "megatron_lm_learning_rate_decay_iters": 320000}),
        lacks("Megatron-LM")),
    "accelerate tests, SageMaker": File("compute_environment: AMAZON_SAGEMAKER\ndebug: false\ndistributed_type: NO\n"
                                        "mixed_precision: fp16\nuse_cpu: false\nec2_instance_type: MY_TYPE\niam_role_name: MY_ROLE\n",
                                        lacks("SageMaker")),
    "notebook, SageMaker": File({"base_job_name": "accelerate-sagemaker-1", "compute_environment": "AMAZON_SAGEMAKER",
                                 "distributed_type": "DATA_PARALLEL", "ec2_instance_type": "ml.p3.16xlarge", "iam_role_name": "xxxxx",
                                 "image_uri": None, "mixed_precision": "fp16", "num_machines": 1, "profile": "xxxx",
                                 "py_version": "py38", "pytorch_version": "1.10.2", "region": "us-east-1",
                                 "transformers_version": "4.17.0", "use_cpu": False}, lacks("SageMaker")),
    "TPU tutorial": File(of("XLA", 8, mixed_precision="no"), lacks("TPUs")),
    "TPU script, four machines": File("compute_environment: LOCAL_MACHINE\ndistributed_type: XLA\ndowncast_bf16: 'no'\n"
                                      "machine_rank: 0\nmain_process_ip: t1v-0\nmain_process_port: 12355\nmixed_precision: bf16\n"
                                      "num_machines: 4\nnum_processes: 32\nuse_cpu: 'no'\n", lacks("TPUs")),
    "TPU script of 2023": File({**OLD, "distributed_type": "TPU", "dynamo_backend": "INDUCTOR", "num_processes": 4,
                                "mixed_precision": "bf16", "command_file": None, "tpu_name": None}, lacks("TPUs")),
    "accelerate template, Intel GPUs": File("distributed_type: MULTI_XPU\nmachine_rank: 0\nnum_machines: 1\nnum_processes: 4\n"
                                            "mixed_precision: bf16\n", lacks("Intel GPUs")),
    "optimum, Gaudi": File(of("MULTI_HPU", 8), lacks("Gaudi accelerators")),
    "ascend guide, NPUs": File(of("MULTI_NPU", 8, gpu_ids="all"), lacks("Ascend NPUs")),
}
