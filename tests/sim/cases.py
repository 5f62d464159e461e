"""Programs for the simulated device, right and wrong ones. `cases.py` alone runs those that leave the process alive, and
writes what the device said of each as JSON; `cases.py NAME` runs one."""

import ctypes
import json
import sys

import sim_device
import torch

DEVICE = sim_device.load()
SIDE = torch.Stream(DEVICE)
THIRD = torch.Stream(DEVICE)
OTHER = torch.Stream("sim:1")
# With this seed libtorch's generators begin.
FIRST_SEED = 67280421310721


def made():
    return torch.ones(1000, device=DEVICE)


def main_stream():
    return torch.accelerator.current_stream()


def read_without_wait():
    a = made()
    with SIDE:
        a * 2


def read_behind_a_wait():
    a = made()
    SIDE.wait_stream(main_stream())
    with SIDE:
        a * 2


def write_while_another_reads():
    a = made()
    SIDE.wait_stream(main_stream())
    with SIDE:
        a * 2
    a.add_(1)


def write_while_another_writes():
    a = made()
    SIDE.wait_stream(main_stream())
    with SIDE:
        a.add_(1)
    a.zero_()


def event_before_the_write():
    a = made()
    event = torch.Event(DEVICE)
    event.record(main_stream())
    a.add_(1)
    SIDE.wait_event(event)
    with SIDE:
        a * 2


def wait_of_the_wrong_stream():
    a = made()
    THIRD.wait_stream(main_stream())
    with SIDE:
        a * 2


def wait_over_a_third_stream():
    a = made()
    THIRD.wait_stream(main_stream())
    SIDE.wait_stream(THIRD)
    with SIDE:
        a * 2


def wait_of_the_host():
    a = made()
    main_stream().synchronize()
    with SIDE:
        a * 2


def view_of_the_same_memory():
    a = made()
    SIDE.wait_stream(main_stream())
    part = a[10:20]
    a.add_(1)
    with SIDE:
        part * 2


def target_of_a_list_operator():
    a = [made(), made()]
    SIDE.wait_stream(main_stream())
    with SIDE:
        torch._foreach_add_(a, 1.0)
    a[1] * 2


def freed_while_another_stream_reads():
    a = made()
    SIDE.wait_stream(main_stream())
    with SIDE:
        a * 2
    del a
    made()


def freed_and_the_stream_recorded():
    a = made()
    SIDE.wait_stream(main_stream())
    with SIDE:
        a * 2
    a.record_stream(SIDE)
    del a
    made()


def freed_behind_a_wait():
    a = made()
    SIDE.wait_stream(main_stream())
    with SIDE:
        a * 2
    main_stream().wait_stream(SIDE)
    del a
    made()


def gradient_of_another_stream():
    w = torch.ones(8, device=DEVICE, requires_grad=True)
    SIDE.wait_stream(main_stream())
    with SIDE:
        loss = (w * 2).sum()
    loss.backward()
    w.grad * 2


def mixed_devices():
    made() + torch.ones(1000)


def two_devices():
    made() + torch.ones(1000, device="sim:1")


def work_of_another_device():
    """Work is given to the stream of the tensors' device."""
    there = torch.ones(1000, device="sim:1")
    with OTHER:
        there * 2


def another_device_behind_a_wait():
    there = torch.ones(1000, device="sim:1")
    OTHER.wait_stream(torch.accelerator.current_stream("sim:1"))
    with OTHER:
        there * 2


def two_streams_over_pinned_memory():
    there = torch.empty(1000).pin_memory()
    there.copy_(made(), non_blocking=True)
    with SIDE:
        there.to(DEVICE, non_blocking=True)


def two_streams_over_pinned_memory_behind_a_wait():
    there = torch.empty(1000).pin_memory()
    there.copy_(made(), non_blocking=True)
    SIDE.wait_stream(main_stream())
    with SIDE:
        there.to(DEVICE, non_blocking=True)


def fresh_memory_is_nan():
    assert torch.empty(1000, device=DEVICE).isnan().all()


def equal_bits(run, *shapes, dtype=torch.float32):
    """Runs `run` and its backward on the CPU and on the device, with the same numbers."""
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    found = []
    for device in (torch.device("cpu"), DEVICE):
        ours = [tensor.detach().clone().to(device).requires_grad_() for tensor in inputs]
        torch.default_generator.manual_seed(FIRST_SEED)
        output = run(*ours)
        output.float().pow(2).sum().backward()
        found.append([output.detach().cpu()] + [tensor.grad.cpu() for tensor in ours])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs), (ours - theirs).abs().max()


F = torch.nn.functional
BITS = {
    "linear": lambda: equal_bits(F.linear, (3, 7, 16), (32, 16), (32,)),
    "linear_bf16": lambda: equal_bits(F.linear, (3, 7, 16), (32, 16), (32,), dtype=torch.bfloat16),
    "layer_norm": lambda: equal_bits(lambda x, w, b: F.layer_norm(x, (48,), w, b), (5, 48), (48,), (48,)),
    "rms_norm": lambda: equal_bits(lambda x, w: F.rms_norm(x, (48,), w), (5, 48), (48,)),
    "attention": lambda: equal_bits(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                                    *[(2, 4, 33, 16)] * 3),
    "attention_with_a_mask": lambda: equal_bits(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(33, 33, device=q.device).tril().bool()),
        *[(2, 4, 33, 16)] * 3),
    # As sequence parallelism calls it.
    "attention_with_a_mask_of_numbers": lambda: equal_bits(
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.zeros(33, 33, device=q.device).masked_fill(torch.ones(33, 33, device=q.device).tril() == 0, -torch.inf),
            scale=0.3, enable_gqa=True),
        (2, 4, 33, 16), (2, 2, 33, 16), (2, 2, 33, 16)),
    "heads_of_a_sequence": lambda: equal_bits(
        lambda x, y: torch.cat([t.reshape(2, 2, -1, 5, 3).transpose(0, 1).reshape(2, -1) for t in (x, y)], 1)
        .split_with_sizes([120, 60], 1)[0].reshape(2, 2, 4, 5, 3).permute(1, 2, 0, 3, 4).reshape(2, 4, 10, 3),
        (2, 8, 5, 3), (2, 4, 5, 3)),
    # As a rank of tensor parallelism looks up tokens of which some are in the rows of other ranks.
    "rows_of_an_embedding": lambda: equal_bits(
        lambda w: F.embedding((local := torch.tensor([[1, -3], [12, 0]], device=w.device)).masked_fill(
            is_elsewhere := (local < 0).logical_or(local >= 10), 0), w).masked_fill(is_elsewhere.unsqueeze(-1), 0), (10, 4)),
    "dropout": lambda: equal_bits(lambda x: F.dropout(x, 0.3), (64, 64)),
    "convolution": lambda: equal_bits(lambda x, w, b: F.conv2d(x, w, b, padding=1), (2, 3, 9, 9), (8, 3, 3, 3), (8,)),
    "batch_norm": lambda: equal_bits(lambda x: F.batch_norm(x, None, None, training=True), (6, 4, 5)),
    "cross_entropy": lambda: equal_bits(
        lambda x: F.cross_entropy(x, torch.tensor([1, -100, 5], device=x.device), label_smoothing=0.1), (3, 10)),
    "embedding": lambda: equal_bits(lambda w: F.embedding(torch.tensor([[1, 2], [1, 0]], device=w.device), w), (10, 4)),
    "gelu_and_silu": lambda: equal_bits(lambda x: F.gelu(x, approximate="tanh") * F.silu(x), (33, 7)),
    "masked_select": lambda: equal_bits(lambda x: x.masked_select(x > 0), (33, 7)),
    "index_put": lambda: equal_bits(lambda x: x.clone().index_put_((x > 1,), torch.zeros((), device=x.device)), (33, 7)),
    "norm_and_foreach": lambda: equal_bits(lambda x, y: torch.cat([t.flatten() for t in torch._foreach_mul([x, y], 3.0)])
                                           / torch.linalg.vector_norm(x), (33, 7), (4,)),
}


def equal_bits_of_operators():
    wrong = {name: text for name, case in BITS.items() if (text := said(case))}
    assert not wrong, wrong


# These end the process.


def host_reads_the_target_of_a_copy():
    there = torch.empty(1000).pin_memory()
    there.copy_(made(), non_blocking=True)
    there.sum()


def host_reads_the_target_behind_a_wait():
    there = torch.empty(1000).pin_memory()
    there.copy_(made(), non_blocking=True)
    main_stream().synchronize()
    assert there.sum() == 1000


def host_writes_the_source_of_a_copy():
    there = torch.ones(1000).pin_memory()
    there.to(DEVICE, non_blocking=True)
    there.zero_()


def host_reads_the_source_of_a_copy():
    there = torch.ones(1000).pin_memory()
    there.to(DEVICE, non_blocking=True)
    assert there.sum() == 1000


def host_reads_the_end_of_a_part():
    there = torch.empty(2000).pin_memory()
    there[:1500].copy_(torch.ones(1500, device=DEVICE), non_blocking=True)
    there[1499].item()


def host_reads_device_memory():
    ctypes.string_at(made().data_ptr(), 4)


ENDING = ("host_",)


def said(case):
    for stream in (main_stream(), SIDE, THIRD, OTHER, torch.accelerator.current_stream("sim:1")):
        stream.synchronize()
    try:
        case()
    except (RuntimeError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        globals()[sys.argv[1]]()
    else:
        names = [name for name, value in globals().items() if callable(value) and value.__module__ == "__main__"]
        cases = [name for name in names if name not in ("said", "made", "main_stream", "equal_bits") and not name.startswith(ENDING)]
        print(json.dumps({name: said(globals()[name]) for name in cases}))
