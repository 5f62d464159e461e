#include "core/machine/value_words.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "base/text.hpp"

namespace accel::machine {
namespace {

/// The words in lower case, a group for each library.
constexpr std::array<std::string_view, 9> kWords = {
    // Truth and absence.
    "true false yes no on off none null auto default all enabled disabled",
    // Levels of logs and of checks.
    "trace debug info warn warning error critical fatal version abort detail verbose quiet",
    // NCCL: subsystems, algorithms, protocols, distances, transports.
    "init coll p2p shm net graph tuning env alloc call proxy nvls bootstrap reg profile ras ring tree "
    "collnet collnetdirect collnetchain nvlstree pat ll ll128 simple loc nvl pix pxb phb node sys ib "
    "socket ofi ucx spectrum af_inet af_inet6 fork blocking nonblocking",
    // torch and its allocator.
    "expandable_segments max_split_size_mb garbage_collection_threshold roundup_power2_divisions "
    "backend native cudamallocasync pinned_use_cuda_host_register pinned_num_register_threads "
    "pinned_use_background_threads release_lock_on_cudamalloc per_process_memory_fraction pytorch "
    "graph_capture_record_stream_reuse avx2 avx512 avx sve sve256 amx neon vsx nccl gloo mpi inductor "
    "eager aot_eager cudagraphs aot_ts_nvfuser nvprims_nvfuser onnxrt ipex tvm hpu_backend "
    "reduce-overhead max-autotune max-autotune-no-cudagraphs sigterm sigint sighup sigquit sigusr1 "
    "sigusr2 tcp uv cuda cpu host",
    // CUDA.
    "lazy pci_bus_id fastest_first compute utility graphics video display compat32 ngx",
    // OpenMP, MKL, oneDNN.
    "spread close master primary threads cores sockets numa_domains ll_caches static dynamic guided "
    "active passive mandatory granularity fine thread core compact scatter balanced explicit logical "
    "physical norespect respect proclist nowarnings warnings intel gnu sequential tbb lp64 ilp64 "
    "sse4_1 sse4_2 sse41 avx512_e1 avx512_e2 avx512_e3 avx512_e4 avx512_mic avx2_vnni avx2_vnni_2 "
    "avx512_core avx512_core_vnni avx512_core_bf16 avx512_core_fp16 avx512_core_amx "
    "avx512_core_amx_fp16 avx10_1_512 compatible strict",
    // glibc.
    "glibc.malloc.hugetlb glibc.malloc.mmap_threshold glibc.malloc.trim_threshold "
    "glibc.malloc.arena_max glibc.malloc.top_pad glibc.malloc.mmap_max glibc.malloc.tcache_count "
    "glibc.malloc.tcache_max glibc.malloc.check glibc.malloc.perturb glibc.malloc.mxfast "
    "glibc.rtld.optional_static_tls glibc.rtld.nns glibc.pthread.rseq glibc.pthread.mutex_spin_count "
    "glibc.pthread.stack_cache_size glibc.cpu.hwcaps glibc.cpu.x86_ibt glibc.cpu.x86_shstk",
    // Slurm.
    "block cyclic plane arbitrary ldoms rank boards map_cpu mask_cpu rank_ldom map_ldom mask_ldom "
    "map_gpu mask_gpu map_mem mask_mem local prefer sort single closest gpu gpus pmi2 pmix",
    // Accelerate and its FSDP.
    "bf16 fp16 fp32 fp8 full_shard shard_grad_op no_shard hybrid_shard hybrid_shard_zero2 "
    "transformer_based_wrap size_based_wrap no_wrap backward_pre backward_post no_prefetch "
    "full_state_dict sharded_state_dict local_state_dict torch deepspeed allgather alltoall te msamp "
    "ao hybrid e4m3 e5m2 most_recent max o1 o2 eager_attention sdpa flash_attention_2",
};

}  // namespace

bool is_value_word(std::string_view word) {
  const std::string lower = lower_case(word);
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view words) { return has_word(words, lower); });
}

}  // namespace accel::machine
