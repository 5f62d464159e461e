"""What overlaps, what is waited for and when the host waits, on the timeline of the simulated device. Its times are those
of a model, the same in each run, so they can be asserted."""

import json
import shutil

import pytest
import sim_device
import train_runs

# Products take long, and everything else little, so that a collective can be hidden behind the products of a unit.
SPEEDS = "matrix_flops_8=4e12,matrix_flops_16=2e12,matrix_flops_32=2e12,launch_s=1e-7,kernel_s=1e-7,collective_s=1e-6"
LAYERS = 4
DEFAULT = 0
HOST = 9999


@pytest.fixture
def steps(accel, tmp_path, monkeypatch):
    """steps(**OPTIONS) trains on two ranks with NCCL and returns the events of rank 0, a list for each step."""
    monkeypatch.setenv("ACCEL_DEVICE_MODULE", str(sim_device.MODULE))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ACCEL_SIM_TRACE", str(tmp_path / "trace"))
    monkeypatch.setenv("ACCEL_SIM_SPEEDS", SPEEDS)

    def run(max_steps=4, width=256, **options):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        train_runs.export(tmp_path / "gpt.pt", width=width, heads=4, layers=LAYERS)
        config = train_runs.config(tmp_path, 2, max_steps=max_steps, **options)
        document = json.loads(config.read_text())
        config.write_text(json.dumps({**document, "use_cpu": False, "gpu_ids": "0,1"}))
        said = accel("launch", config).stderr
        assert "2 ranks on 2 GPUs, backend nccl" in said
        # The rank ends without closing the list.
        events = json.loads((tmp_path / "trace/rank_0.json").read_text().rstrip().rstrip(",") + "]")
        found = [[]]
        for event in events:
            if event["ph"] != "X":
                continue
            found[-1].append(event)
            if event["name"] == "aten::_fused_adamw_":
                found.append([])
        assert len(found) == max_steps + 1
        return found[:-1]

    return run


def named(events, name, track=None):
    return [event for event in events if event["name"] == name and track in (None, event["tid"])]


def overlap(event, others):
    """The microseconds of `event` in which one of the others runs. The others do not overlap with each other."""
    begin, end = event["ts"], event["ts"] + event["dur"]
    return sum(max(0, min(end, other["ts"] + other["dur"]) - max(begin, other["ts"])) for other in others)


def products(events):
    return [event for event in events if event["name"] in ("aten::mm", "aten::addmm") and event["tid"] == DEFAULT]


def test_gathers_and_reductions_run_behind_the_products_of_other_units(steps):
    _, _, step, _ = steps()
    gathers = named(step, "all-gather")
    # Each block is gathered in forward and in backward. The root stays gathered.
    assert len(gathers) == 2 * LAYERS + 1
    hidden = [event for event in gathers if overlap(event, products(step)) > 0.95 * event["dur"]]
    # Nothing runs before the root and the first block are gathered.
    assert len(hidden) == len(gathers) - 2
    assert len(named(step, "wait for all-gather", DEFAULT)) == 2
    reductions = named(step, "reduce-scatter")
    assert len(reductions) == LAYERS + 1
    # Nothing is left to compute when the first block and the root are reduced.
    assert [overlap(event, products(step)) > 0.95 * event["dur"] for event in reductions] == [True] * 3 + [False] * 2
    assert len(named(step, "wait for reduce-scatter", DEFAULT)) == 1


def test_the_host_waits_once_a_step(steps):
    for step in steps()[1:]:
        assert len([event for event in step if event["tid"] == HOST]) == 1


def test_accumulated_micro_batches_make_the_host_wait_no_more(steps):
    for step in steps(gradient_accumulation_steps=3)[1:]:
        assert len([event for event in step if event["tid"] == HOST]) == 1


def test_the_optimizer_gives_the_device_one_kernel_for_all_parameters(steps):
    _, _, step, _ = steps()
    [host] = [event for event in step if event["tid"] == HOST]
    behind = [event["name"] for event in step if event["tid"] == DEFAULT and event["ts"] > host["ts"] + host["dur"] - 1e-3]
    # The gradients are scaled, the number of steps becomes a tensor, and all parameters are changed.
    assert behind == ["aten::_foreach_mul_", "aten::fill_", "aten::_fused_adamw_"]


def test_without_prefetch_each_gather_of_backward_is_waited_for(steps):
    """The timeline shows what is not hidden."""
    options = {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_sharding_strategy": "FULL_SHARD",
               "fsdp_config.fsdp_backward_prefetch": "NO_PREFETCH"}
    ahead = steps(**{**options, "fsdp_config.fsdp_backward_prefetch": "BACKWARD_PRE"})[2]
    exposed = steps(**options)[2]
    waits = [sum(event["dur"] for event in named(step, "wait for all-gather", DEFAULT)) for step in (ahead, exposed)]
    assert waits[1] > 2 * waits[0]


def test_a_save_copies_beside_the_training(steps):
    """What a save copies to the host runs on a stream of its own, and the training's thread waits for none of it."""
    run = steps(max_steps=6, checkpoint={"every": 3, "resume": "none"})
    copies = [event for step in run for event in named(step, "copy to host")]
    saved = [event for event in copies if event["args"]["bytes"] > 100_000]
    # The shard and both moments of all parameters but the smallest. The last save follows the last step.
    assert sum(event["args"]["bytes"] for event in saved) / 3 / 4 == pytest.approx(3233280 / 2, rel=0.01)
    assert DEFAULT not in {event["tid"] for event in saved}
    waits = [event for event in run[3] if event["tid"] == HOST]
    plain = [event for event in run[1] if event["tid"] == HOST]
    # The ranks agree that a save begins, in some small collectives.
    small = sum(event["dur"] for event in waits) - sum(event["dur"] for event in plain)
    assert small < 20


WIDTH = 512
FLOAT8 = {"mixed_precision": "fp8", "fp8_config.enable_fsdp_float8_all_gather": False}


@pytest.mark.long(but="float32")
@pytest.mark.parametrize("options", [{}, FLOAT8], ids=["float32", "float8"])
def test_times_do_not_depend_on_what_is_computed(steps, monkeypatch, options):
    """Without computing large tensors, which a prediction for a large model leaves out."""
    computed = steps(max_steps=2, width=WIDTH, **options)[1]
    monkeypatch.setenv("ACCEL_SIM_COMPUTE", "small")
    left_out = steps(max_steps=2, width=WIDTH, **options)[1]
    shorten = [[(event["name"], event["tid"], event["args"]["bytes"], round(event["dur"], 2)) for event in step
                if event["tid"] != HOST] for step in (computed, left_out)]
    assert shorten[0] == shorten[1]
    if not options:
        return
    # The first linear of the first block, which is a quarter of its weights, and the head have 16 bits.
    tokens, block = 4 * 32, 12 * WIDTH * WIDTH
    narrow = LAYERS * block - block // 4
    wide = block // 4 + 256 * WIDTH
    seconds = [sum(event["dur"] for event in events) * 1e-6 for events in (named(left_out, "aten::_scaled_mm"), products(left_out))]
    assert seconds == pytest.approx([6 * tokens * narrow / 4e12, 6 * tokens * wide / 2e12], rel=1e-3)
