"""Repeats the tests that compare numbers with the instructions, the threads and the page cache of other machines.

    tools/dev test --processors [NAME...]

libtorch, oneDNN and MKL choose their code by the processor. Each has a variable that makes it choose as if the processor had
fewer instructions. A bound that holds only for the sums of one processor fails in one of these settings. NAME chooses
settings; without one, all run. A setting that this machine cannot have is skipped by name.
"""

import dataclasses
import functools
import glob
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", ROOT / "build"))
COLD = "ACCEL_COLD_CACHE"  # With this variable, conftest.py calls empty_page_cache() before each test.


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    aten: str  # ATEN_CPU_CAPABILITY: the kernels of libtorch itself.
    onednn: str  # ONEDNN_MAX_CPU_ISA: products of 16 bits, and products of float32 on some processors.
    mkl: str  # MKL_ENABLE_INSTRUCTIONS: products of float32.
    threads: int
    flags: frozenset[str] = frozenset()  # What /proc/cpuinfo has to name.
    cold: bool = False  # Whether each test reads the programs and libraries from the disk.

    def environment(self) -> dict[str, str]:
        # There may be more threads than cores. Threads that wait actively would take the cores from those that work.
        return {"ATEN_CPU_CAPABILITY": self.aten, "ONEDNN_MAX_CPU_ISA": self.onednn, "MKL_ENABLE_INSTRUCTIONS": self.mkl,
                "OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "PASSIVE", **({COLD: "1"} if self.cold else {})}

    def impossible(self) -> str:
        """Returns why this machine cannot have the setting, or an empty string."""
        if lacking := self.flags - processor_flags():
            return f"the processor does not have {', '.join(sorted(lacking))}"
        if self.cold and (held := held_in_cache()) > 0.5:
            return f"other processes hold {held:.0%} of libtorch in the page cache"
        return ""


AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
SETTINGS = [
    Setting("sse4", "default", "SSE41", "SSE4_2", 1),
    Setting("avx2", "avx2", "AVX2", "AVX2", 2, AVX2),
    Setting("avx2-cold", "avx2", "AVX2", "AVX2", 1, AVX2, cold=True),
    Setting("avx512", "avx512", "AVX512_CORE", "AVX512", 4, AVX512),
    Setting("avx512-vnni", "avx512", "AVX512_CORE_VNNI", "AVX512", 1, AVX512 | {"avx512_vnni"}),
    Setting("avx512-bf16", "avx512", "AVX512_CORE_BF16", "AVX512", 2, AVX512 | {"avx512_bf16"}),
    Setting("amx", "avx512", "AVX512_CORE_AMX", "AVX512", 1, AVX512 | {"amx_tile", "amx_bf16"}),
    Setting("mixed", "default", "AVX512_CORE", "AVX2", 4, AVX512),  # Each library has other instructions.
]

UNIT_TESTS = ["test-train", "test-matrix-products"]
# Each kind of number that tests compare is in this list. Cases that differ only in how accel shards or saves are not.
TESTS = """
tests/interop/test_processors.py
tests/e2e/test_compiled_units.py::test_losses_are_those_of_the_interpreter[float32-2]
tests/e2e/test_compiled_units.py::test_losses_are_those_of_the_interpreter[bfloat16-2]
tests/e2e/test_digits.py
tests/interop/test_autocast.py
tests/interop/test_float8.py::test_losses_and_weights_equal_torchaos[rowwise, version 2]
tests/interop/test_float8_gather.py::test_losses_and_weights_equal_torchaos[checkpointing, accumulation]
tests/interop/test_float16.py::test_losses_equal_fully_shard[1 rank]
tests/interop/test_float16.py::test_losses_equal_fully_shard[3 ranks, accumulation]
tests/interop/test_float16.py::test_overflows_skip_the_steps_that_they_skip_in_python[2]
tests/interop/test_parity.py::test_losses_equal_fully_shard[1 rank]
tests/interop/test_parity.py::test_losses_equal_fully_shard[2 ranks, accumulation]
tests/interop/test_parity.py::test_losses_of_every_layout_of_ranks_equal_pythons[2 x 2]
tests/interop/test_parity.py::test_losses_of_every_layout_of_ranks_equal_pythons[MULTI_CPU]
tests/interop/test_parity.py::test_ignored_modules_are_trained_with_the_mean_of_all_ranks[2 ranks]
tests/interop/test_parity.py::test_offloading_on_cpu_ranks_changes_no_loss[2 ranks]
tests/interop/test_parity.py::test_losses_in_bfloat16_equal_fully_shard[1 rank]
tests/interop/test_parity.py::test_losses_in_bfloat16_equal_fully_shard[3 ranks, accumulation]
tests/interop/test_parity.py::test_losses_in_bfloat16_equal_fully_shard[gradients in float32]
tests/interop/test_parity_table.py
tests/interop/test_comm_hook.py
tests/interop/test_ddp_buffers.py::test_running_statistics_are_those_of_rank_0[2 ranks]
tests/interop/test_missing_gradients.py::test_parameters_without_a_gradient_stay_as_they_are[2 ranks]
tests/interop/test_missing_gradients.py::test_parameters_without_a_gradient_stay_as_they_are[DDP]
tests/interop/test_fused_head.py::test_steps_are_those_of_torch
tests/interop/test_fused_head.py::test_bfloat16
tests/interop/test_exported_training.py
tests/interop/test_export_tensor_parallel.py::test_a_file_is_right_with_the_weights_of_each_rank[qwen3]
tests/interop/test_export_tensor_parallel.py::test_a_file_with_whole_weights_is_the_plain_record[qwen3]
tests/gpu/test_gpu_parallel.py::test_ranks_that_share_samples_equal_cpu_ranks[sim-tp]
tests/gpu/test_gpu_parallel.py::test_ranks_that_share_samples_equal_cpu_ranks[sim-sp]
tests/interop/test_export_tensor_parallel.py::test_it_trains_on_several_ranks_as_on_one_and_as_transformers_does[gpt_neox]
tests/interop/test_compiled_check.py::test_right_code_is_right
tests/e2e/test_determinism.py
tests/e2e/test_uint8_pictures.py
tests/interop/test_tensor_data.py::test_a_model_trains_as_in_python
tests/interop/test_document_training.py::test_losses_are_those_of_each_document_alone
tests/interop/test_tensor_data.py::test_pictures_in_bfloat16
tests/interop/test_model_zoo.py
tests/interop/test_pt2_training.py
tests/interop/test_pt2_forms.py::test_all_of_it_trains_as_the_eager_model
tests/interop/test_adapter.py::test_losses_and_weights_are_those_of_peft
tests/interop/test_merge_adapter.py
tests/interop/test_exported_training.py::test_an_adapter_of_a_program_is_trained_as_peft_trains_it
tests/interop/test_train_weights.py::test_original_safetensors_train_and_come_back
tests/interop/test_merge_run.py::test_transformers_loads_the_newest_checkpoint_of_a_run
tests/interop/test_weight_names.py::test_a_training_of_experts_goes_on_and_is_exported
tests/interop/test_accelerate_state.py::test_both_train_alike
tests/interop/test_train_checkpoint.py::test_ignored_modules_that_are_trained_are_in_the_checkpoint_once
tests/interop/test_train_checkpoint.py::test_python_goes_on_training_from_our_checkpoint
tests/interop/test_export_modes.py::test_every_operator_with_a_mode_follows_it_in_a_traced_file
tests/interop/test_offload.py
tests/interop/test_adamw8bit.py::test_weights_codes_and_scales_are_those_of_torchao[2]
tests/interop/test_optimizers.py::test_weights_and_states_are_those_of_torch[2-adafactor]
tests/e2e/test_side_results.py::test_state_is_changed_once_a_step_and_seen_as_it_was
tests/e2e/test_model_errors.py::test_a_scripted_models_own_dropout_stays
tests/e2e/test_model_errors.py::test_labels_are_not_shifted_twice
tests/e2e/test_train.py::test_merged_weights_give_the_same_held_out_loss_in_eager_python
tests/e2e/test_resume.py::test_goes_on_with_another_number_of_ranks
tests/e2e/test_plan_memory.py
tests/e2e/test_guide.py
""".split("\n")[1:-1]


@functools.cache
def processor_flags() -> frozenset[str]:
    found = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return frozenset(found[1].split() if found else ())


@functools.cache
def programs() -> list[str]:
    """Returns the programs under test and the libraries of torch, which are the largest files that they load."""
    torch = importlib.util.find_spec("torch").submodule_search_locations[0]
    return [str(BUILD / "src/cli/accel"), str(BUILD / "src/train/accel-worker"), *glob.glob(f"{torch}/lib/*.so*")]


def empty_page_cache() -> None:
    """Makes the kernel drop what it caches of programs(), except the pages that a process has mapped."""
    for path in programs():
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def held_in_cache() -> float:
    """Empties the page cache and returns the part of libtorch that is in it all the same."""
    if not shutil.which("fincore"):
        return 1.0
    empty_page_cache()
    library = next(path for path in programs() if path.endswith("/libtorch_cpu.so"))
    held, size = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES,SIZE", library],
                                capture_output=True, text=True, check=True).stdout.split()
    return int(held) / int(size)


@dataclasses.dataclass
class Result:
    setting: Setting
    passed: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    skipped: int = 0
    minutes: float = 0

    def add(self, program: str, code: int, report: pathlib.Path) -> None:
        """Adds the test cases of a JUnit report. A program that fails without a failed case is a failure itself."""
        failed = []
        for case in xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ():
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(name)
            elif case.find("skipped") is not None:
                self.skipped += 1
            else:
                self.passed += 1
        if code != 0 and not failed:
            failed.append(f"{program} ended with exit code {code}")
        self.failed += failed


def run(setting: Setting) -> Result:
    result, begin = Result(setting), time.monotonic()
    environment = {**os.environ, **setting.environment()}
    with tempfile.TemporaryDirectory(prefix="accel-processors-") as place:
        for program in UNIT_TESTS:
            if setting.cold:
                empty_page_cache()
            report = pathlib.Path(place, f"{program}.xml")
            command = [BUILD / "tests/unit/train" / program, "--gtest_brief=1", f"--gtest_output=xml:{report}"]
            result.add(program, subprocess.run(command, env=environment).returncode, report)
        report = pathlib.Path(place, "pytest.xml")
        processes = min(os.cpu_count() or 1, 4)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", f"--numprocesses={processes}",
                   "--dist=worksteal", f"--junitxml={report}", *TESTS]
        result.add("pytest", subprocess.run(command, env=environment, cwd=ROOT).returncode, report)
    result.minutes = (time.monotonic() - begin) / 60
    return result


def table(results: list[Result], skipped: dict[Setting, str]) -> str:
    lines = [f"{'setting':12} {'ATen':8} {'oneDNN':17} {'MKL':7} {'threads':7} {'cache':5}  passed  failed  skipped  minutes"]
    by_setting = {result.setting: result for result in results}
    for setting in [setting for setting in SETTINGS if setting in by_setting or setting in skipped]:
        line = (f"{setting.name:12} {setting.aten:8} {setting.onednn:17} {setting.mkl:7} {setting.threads:7} "
                f"{'cold' if setting.cold else 'warm':5}  ")
        if result := by_setting.get(setting):
            line += f"{result.passed:6}  {len(result.failed):6}  {result.skipped:7}  {result.minutes:7.1f}"
        else:
            line += f"SKIPPED: {skipped[setting]}"
        lines.append(line)
    lines += [f"FAILED {result.setting.name}: {name}" for result in results for name in result.failed]
    return "\n".join(lines)


def main(names: list[str]) -> int:
    known = {setting.name: setting for setting in SETTINGS}
    if unknown := [name for name in names if name not in known]:
        print(f"there is no setting {', '.join(unknown)}; the settings are {', '.join(known)}", file=sys.stderr)
        return 2
    results, skipped = [], {}
    for setting in [known[name] for name in names] or SETTINGS:
        if reason := setting.impossible():
            skipped[setting] = reason
            continue
        print(f"\n== {setting.name}: {' '.join(f'{name}={value}' for name, value in setting.environment().items())}", flush=True)
        results.append(run(setting))
        print("\n" + table(results, skipped), flush=True)
    if not results:
        print(f"no setting ran\n{table(results, skipped)}", file=sys.stderr)
    return 0 if results and not any(result.failed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
