"""Ends the rank of a test script, or runs a script of others and ends it so: python ranks_end.py MODULE [ARGUMENTS]."""

import os
import runpy
import sys


def leave():
    """Ends this process when every rank has called leave().

    It does not use destroy_process_group and the interpreter's exit, because a rank of torch 2.11 over Gloo sometimes
    aborts there with "terminate called without an active exception".
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    leave()
