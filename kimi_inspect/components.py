"""The parts of a model that bytes are counted by, and the groups they stand in."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["GROUPS", "Component", "Group"]


class Group(StrEnum):
    """A family of components, as one places them on hardware together."""

    EXPERTS = "experts"
    MLP = "mlp"
    ATTENTION = "attention"
    TEXT_OTHER = "text_other"
    MULTIMODAL = "multimodal"
    DRAFT = "draft"
    OTHER = "other"


class Component(StrEnum):
    """What a tensor is part of. Norms and biases inside a block belong to that block."""

    ROUTED_EXPERTS = "routed_experts"
    SHARED_EXPERTS = "shared_experts"
    ROUTER = "router"
    LATENT_PROJECTION = "latent_projection"
    DENSE_MLP = "dense_mlp"
    KDA_ATTENTION = "kda_attention"
    MLA_ATTENTION = "mla_attention"
    SPARSE_INDEXER = "sparse_indexer"
    LINEAR_ATTENTION = "linear_attention"
    ATTENTION = "attention"
    ATTENTION_RESIDUAL = "attention_residual"
    NORMS = "norms"
    EMBEDDINGS = "embeddings"
    LM_HEAD = "lm_head"
    VISION_TOWER = "vision_tower"
    AUDIO_TOWER = "audio_tower"
    PROJECTOR = "projector"
    MTP = "mtp"
    OTHER = "other"

    @property
    def group(self) -> Group:
        """The group this component stands in."""
        return GROUPS[self]


_MEMBERS: dict[Group, tuple[Component, ...]] = {
    Group.EXPERTS: (Component.ROUTED_EXPERTS,),
    Group.MLP: (Component.SHARED_EXPERTS, Component.ROUTER, Component.LATENT_PROJECTION, Component.DENSE_MLP),
    Group.ATTENTION: (
        Component.KDA_ATTENTION,
        Component.MLA_ATTENTION,
        Component.SPARSE_INDEXER,
        Component.LINEAR_ATTENTION,
        Component.ATTENTION,
    ),
    Group.TEXT_OTHER: (Component.ATTENTION_RESIDUAL, Component.NORMS, Component.EMBEDDINGS, Component.LM_HEAD),
    Group.MULTIMODAL: (Component.VISION_TOWER, Component.AUDIO_TOWER, Component.PROJECTOR),
    Group.DRAFT: (Component.MTP,),
    Group.OTHER: (Component.OTHER,),
}

GROUPS: dict[Component, Group] = {component: group for group, members in _MEMBERS.items() for component in members}
"""The group of each component."""
