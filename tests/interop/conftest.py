"""Checkpoints of torch's own writers, made once for all tests."""

import pathlib

import ckpt_peers
import pytest


@pytest.fixture(scope="session")
def torch_checkpoints(tmp_path_factory) -> pathlib.Path:
    """A directory with one checkpoint directory for each of ckpt_peers.KINDS, saved by torch on several ranks."""
    directory = tmp_path_factory.mktemp("torch_checkpoints")
    ckpt_peers.save_on_ranks(directory)
    return directory
