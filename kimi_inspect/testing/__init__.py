"""Stand-ins for tests: hollow checkpoints with true headers, a Hub on the loopback that plays faults, and Kimi.

    from kimi_inspect.testing import LoopbackHub, Repository, faults, kimi_k31_pro

    with LoopbackHub([Repository(repo_id="moonshotai/Kimi-K3.1-Pro", files=kimi_k31_pro())]) as hub:
        hub.play(faults.rate_limited(retry_after=1), path="model-00003")
        client(endpoint=hub.endpoint)
        print(hub.log)

Everything is made of the standard library alone, and independent of what it is there to test.
"""

from __future__ import annotations

from kimi_inspect.testing import faults
from kimi_inspect.testing.catalog import Repository
from kimi_inspect.testing.faults import Fault
from kimi_inspect.testing.hollow import (
    DTYPE_BITS,
    Files,
    HollowFile,
    TensorSpec,
    hollow_checkpoint,
    hollow_from_header,
    hollow_safetensors,
)
from kimi_inspect.testing.hub import LoopbackHub, Served
from kimi_inspect.testing.kimi import (
    KIMI_K3_ID,
    KIMI_K31_PRO_COMMIT,
    KIMI_K31_PRO_ID,
    kimi_config,
    kimi_k3,
    kimi_k31_pro,
    kimi_tensors,
)

__all__ = [
    "DTYPE_BITS",
    "KIMI_K3_ID",
    "KIMI_K31_PRO_COMMIT",
    "KIMI_K31_PRO_ID",
    "Fault",
    "Files",
    "HollowFile",
    "LoopbackHub",
    "Repository",
    "Served",
    "TensorSpec",
    "faults",
    "hollow_checkpoint",
    "hollow_from_header",
    "hollow_safetensors",
    "kimi_config",
    "kimi_k3",
    "kimi_k31_pro",
    "kimi_tensors",
]
