"""Stand-ins for tests: hollow checkpoints with true headers, a Hub on the loopback that plays faults, and Kimi.

Checkpoints are safetensors and GGUF; of Kimi K3.1 Pro there are the official one, eight sets of GGUF parts and builds
of other makers. A small model comes in every encoding that tools write. `damage` plants what can be wrong with one.

    from kimi_inspect.testing import LoopbackHub, Repository, faults, kimi_k31_pro

    with LoopbackHub([Repository(repo_id="moonshotai/Kimi-K3.1-Pro", files=kimi_k31_pro())]) as hub:
        hub.play(faults.rate_limited(retry_after=1), path="model-00003")
        client(endpoint=hub.endpoint)
        print(hub.log)

Everything is made of the standard library alone, and independent of what it is there to test.
"""

from __future__ import annotations

from kimi_inspect.testing import damage, faults
from kimi_inspect.testing.catalog import Repository
from kimi_inspect.testing.faults import Fault
from kimi_inspect.testing.gguf import (
    GGML_TYPES,
    ByteOrder,
    Encoded,
    GgufTensor,
    SplitNumbers,
    Typed,
    ValueKind,
    encoded,
    hollow_gguf,
    split_gguf,
)
from kimi_inspect.testing.hollow import (
    DTYPE_BITS,
    Files,
    HollowFile,
    TensorSpec,
    hollow_checkpoint,
    hollow_from_header,
    hollow_safetensors,
)
from kimi_inspect.testing.hub import LoopbackHub
from kimi_inspect.testing.kimi import (
    KIMI_K3_ID,
    KIMI_K31_PRO_COMMIT,
    KIMI_K31_PRO_ID,
    kimi_config,
    kimi_k3,
    kimi_k31_pro,
    kimi_tensors,
)
from kimi_inspect.testing.kimi_builds import (
    AINSLEYMARKOV_ID,
    BUILDS,
    DPHN_ID,
    INFERENCERLABS_ID,
    PIPENETWORK_IDS,
    UNSLOTH_ID,
    VLLM_PROJECT_ID,
    kimi_2bit,
    kimi_mlx,
    kimi_nf12,
    kimi_pruned,
    kimi_reap,
)
from kimi_inspect.testing.kimi_gguf import (
    DANIELHANCHEN_GGUF_ID,
    DEVQUASAR_GGUF_ID,
    KimiRecipe,
    Precision,
    danielhanchen_gguf,
    devquasar_gguf,
    imatrix_gguf,
    kimi_gguf,
    kimi_gguf_tensors,
    kimi_mmproj,
)
from kimi_inspect.testing.kimi_gguf_builds import (
    KARLEXAI_GGUF_ID,
    MIDAGEDEV_GGUF_ID,
    karlexai_gguf,
    midagedev_gguf,
)
from kimi_inspect.testing.loopback import Served
from kimi_inspect.testing.modelscope import LoopbackModelScope
from kimi_inspect.testing.packed import ENCODINGS, PackedModel, packed_model

__all__ = [
    "AINSLEYMARKOV_ID",
    "BUILDS",
    "DANIELHANCHEN_GGUF_ID",
    "DEVQUASAR_GGUF_ID",
    "DPHN_ID",
    "DTYPE_BITS",
    "ENCODINGS",
    "GGML_TYPES",
    "INFERENCERLABS_ID",
    "KARLEXAI_GGUF_ID",
    "KIMI_K3_ID",
    "KIMI_K31_PRO_COMMIT",
    "KIMI_K31_PRO_ID",
    "MIDAGEDEV_GGUF_ID",
    "PIPENETWORK_IDS",
    "UNSLOTH_ID",
    "VLLM_PROJECT_ID",
    "ByteOrder",
    "Encoded",
    "Fault",
    "Files",
    "GgufTensor",
    "HollowFile",
    "KimiRecipe",
    "LoopbackHub",
    "LoopbackModelScope",
    "PackedModel",
    "Precision",
    "Repository",
    "Served",
    "SplitNumbers",
    "TensorSpec",
    "Typed",
    "ValueKind",
    "damage",
    "danielhanchen_gguf",
    "devquasar_gguf",
    "encoded",
    "faults",
    "hollow_checkpoint",
    "hollow_from_header",
    "hollow_gguf",
    "hollow_safetensors",
    "imatrix_gguf",
    "karlexai_gguf",
    "kimi_2bit",
    "kimi_config",
    "kimi_gguf",
    "kimi_gguf_tensors",
    "kimi_k3",
    "kimi_k31_pro",
    "kimi_mlx",
    "kimi_mmproj",
    "kimi_nf12",
    "kimi_pruned",
    "kimi_reap",
    "kimi_tensors",
    "midagedev_gguf",
    "packed_model",
    "split_gguf",
]
