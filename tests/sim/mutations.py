#!/usr/bin/env python3
"""Takes waits out of the engine, one after another, and shows what the simulated device says of each.

Run it in a checkout of its own, whose build folder is up to date: it changes sources, builds, runs one test, and puts the
source back. With names as arguments it tries these mutations alone. It ends with 1 if a mutation is not found."""

import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = "tests/gpu/test_gpu_ranks.py::test_ranks_with_a_gpu_each_equal_cpu_ranks[sim-{}]"
SHARED = "tests/gpu/test_gpu_parallel.py::test_ranks_that_share_samples_equal_cpu_ranks[sim-{}]"
RESUME = "tests/gpu/test_gpu_ranks.py::test_a_resumed_run_of_two_gpus_goes_on_as_if_it_had_not_ended[sim-behind]"

# A rank alone gathers nothing, and waits for the copy alone.
ALONE = "tests/gpu/test_gpu_offload.py::test_offloaded_parameters_train_as_on_the_gpu[sim-1-no-resharded]"


@dataclass
class Mutation:
    name: str
    file: str  # below src/train
    old: str
    new: str
    test: str


def nothing(name, file, old, test):
    return Mutation(name, file, old, "", test)


FLAT, HOST, SAVED, READER = "fsdp/buffers/flat_buffer.cpp", "device/host_storage.cpp", "device/saved_activations.cpp", "device/device_reader.cpp"
MUTATIONS = [
    nothing("a gather is not waited for", FLAT, "  gather_.wait();\n", RANKS.format("plain")),
    nothing("the copy of an offloaded shard is not waited for", FLAT,
            "  if (fetch_ != nullptr) std::exchange(fetch_, nullptr)->wait_on_stream();\n", ALONE),
    Mutation("a gather does not wait for the copy of its input", FLAT,
             "fetch_->then([&] { gather_ = group.all_gather(sendable(full_), sendable(own)); });",
             "gather_ = group.all_gather(sendable(full_), sendable(own));",
             RANKS.format("offload")),
    nothing("a reduce-scatter is not waited for", FLAT, "  reduce_.wait();\n", RANKS.format("plain")),
    nothing("an all-reduce of the replicas is not waited for", FLAT, "  average_.wait();\n", RANKS.format("replicas of shards")),
    Mutation("the gradient of an offloaded shard is freed during its copy", FLAT,
             "  if (store_ != nullptr) std::exchange(store_, nullptr)->wait_on_stream();\n", "  store_.reset();\n", RANKS.format("offload")),
    nothing("a copy does not wait for the stream that computes", HOST, "  ready.block(lane);\n", RANKS.format("offload")),
    Mutation("who waits for a copy orders nothing", HOST,
             "void wait_on_stream() override { done_.block(current_stream(lane_.device())); }", "void wait_on_stream() override {}",
             ALONE),
    nothing("the host does not wait for copies to it", HOST, "  to_host_.synchronize();\n", RANKS.format("offload")),
    Mutation("copies in both directions share no order with what computes", HOST, "  ready.record(current_stream(lane.device()));\n",
             "  ready.record(lane);\n", RANKS.format("offloaded activations")),
    Mutation("activations are freed during their copy", SAVED,
             "    std::exchange(entry.copy, nullptr)->wait_on_stream();\n    entry.original.reset();\n",
             "    entry.copy.reset();\n    entry.original.reset();\n", RANKS.format("offloaded activations")),
    Mutation("fetched activations are not waited for", SAVED,
             "    if (entry.copy != nullptr) std::exchange(entry.copy, nullptr)->wait_on_stream();\n    tensors.push_back",
             "    entry.copy.reset();\n    tensors.push_back", RANKS.format("offloaded activations")),
    Mutation("a save does not wait for the optimizer", READER, "  ready.block(lane_);\n", "",
             "tests/gpu/test_gpu_features.py::test_a_resumed_run_goes_on_as_if_it_had_not_ended[sim-1-behind]"),
    Mutation("a save does not wait for its copies", READER, "    stage.filled.synchronize();\n", "", RESUME),
    Mutation("the optimizer does not wait for the copies of a save", "checkpoint/snapshot.cpp",
             "  if (is_on_device(tensor)) progress_.wait(lock, [&] { return is_safe(entry) || !copies_ahead_; });\n",
             "  if (is_on_device(tensor)) return;\n", RESUME),
    nothing("a hook's all-reduce is not waited for", "fsdp/buffers/comm_hook.cpp", "    pending_.wait();\n", RANKS.format("replicas with a hook")),
    nothing("PowerSGD does not wait for its first all-reduce", "fsdp/buffers/power_sgd.cpp", "  pending_.wait();\n", RANKS.format("replicas with PowerSGD")),
    Mutation("PowerSGD does not wait for its second all-reduce", "fsdp/buffers/power_sgd.cpp", "group_->all_reduce_sum(qs_).wait();",
             "group_->all_reduce_sum(qs_);", RANKS.format("replicas with PowerSGD")),
    nothing("Muon does not wait for its gathers", "optim/muon.cpp", "    for (Pending& gather : gathers) gather.wait();\n", RANKS.format("muon")),
    nothing("Muon does not wait for its scatters", "optim/muon.cpp", "    for (Pending& scatter : scatters) scatter.wait();\n",
            RANKS.format("muon")),
    Mutation("Adafactor does not wait for its sums", "optim/adafactor.cpp", "groups->world().all_reduce_sum(there).wait();",
             "groups->world().all_reduce_sum(there);", RANKS.format("adafactor")),
    Mutation("a sum of tensor parallelism is not waited for", "fsdp/linears/tensor_linear.cpp", "ranks.all_reduce_sum(sum).wait();",
             "ranks.all_reduce_sum(sum);", SHARED.format("tp")),
    Mutation("a gather of tensor parallelism is not waited for", "fsdp/linears/tensor_linear.cpp", "ranks.all_gather(all, own.view(-1)).wait();",
             "ranks.all_gather(all, own.view(-1));", SHARED.format("tp")),
    Mutation("the sum of a gradient between linears that are cut is not waited for", "fsdp/unit.cpp",
             "groups_.tp().all_reduce_sum(sum).wait();", "groups_.tp().all_reduce_sum(sum);", SHARED.format("tp")),
    Mutation("attention does not wait for the heads of other ranks", "fsdp/sequence_parallel.cpp",
             "all_to_all(out.reshape({-1}), in.reshape({-1})).wait();", "all_to_all(out.reshape({-1}), in.reshape({-1}));",
             SHARED.format("sp")),
    Mutation("a broadcast is not waited for", "c10d/group.cpp", "  backend_->broadcast(tensors)->wait();", "  backend_->broadcast(tensors);",
             RANKS.format("read by rank 0")),
    Mutation("the numbers of a step are read before their all-reduce", "c10d/group.cpp", "  backend_->allreduce(tensors)->wait();",
             "  backend_->allreduce(tensors);", RANKS.format("plain")),
    Mutation("a batch is written while it is copied to the device", "loop/samples.cpp", "tensor.to(device, /*non_blocking=*/true);",
             "tensor.to(device, /*non_blocking=*/true);\n    if (tensor.is_pinned()) tensor.zero_();", RANKS.format("plain")),
]


def build():
    return subprocess.run(["ninja", "-C", ROOT / "build", "src/train/accel-worker"], capture_output=True, text=True)


def try_one(mutation):
    path = ROOT / "src/train" / mutation.file
    source = path.read_text()
    if source.count(mutation.old) != 1:
        return f"its text is {source.count(mutation.old)} times in {mutation.file}", False
    try:
        path.write_text(source.replace(mutation.old, mutation.new))
        built = build()
        if built.returncode != 0:
            return "it does not compile", False
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutation.test], cwd=ROOT,
                              capture_output=True, text=True, env={**os.environ, "COLUMNS": "300"})
    finally:
        path.write_text(source)
    if done.returncode == 0:
        return "NOT FOUND", False
    patterns = (r"RACE: (.*)", r"^ *E? *error: (.*)", r"^E +(.*)")
    said = next((found for pattern in patterns if (found := re.search(pattern, done.stdout, re.MULTILINE))), None)
    return said[1] if said else done.stdout[-300:], done.returncode == 1


def main():
    chosen = [mutation for mutation in MUTATIONS if not sys.argv[1:] or mutation.name in sys.argv[1:]]
    found = 0
    for mutation in chosen:
        text, good = try_one(mutation)
        found += good
        print(f"{mutation.name}\n    {text}", flush=True)
    build()
    print(f"{found} of {len(chosen)} mutations were found")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
