"""The parts of one of our DreamerV3 workflows, and their tensors under the published names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reverie.components.controllers.critic import Critic
from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.actions import ActionHead
from reverie.components.networks.heads import BinaryHead, ScalarHead
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.representation_learners.rssm import Rssm
from reverie.interop import dreamer_v3_names as names
from reverie.interop.links import Link
from reverie.workflows.controllers import found
from reverie.workflows.dreamer import Dreamer


@dataclass(frozen=True, kw_only=True, slots=True)
class DreamerParts:
    encoder: ObservationEncoder
    rssm: Rssm
    decoder: ObservationDecoder
    reward_head: ScalarHead
    continue_head: BinaryHead
    return_scale: ReturnScale
    actor: ActionHead
    critic: Critic

    @classmethod
    def of(cls, workflow: Dreamer) -> DreamerParts:
        modules = workflow.modules()
        return cls(
            encoder=found(modules, "encoder", ObservationEncoder, section="components"),
            rssm=found(modules, "representation_learner", Rssm, section="components"),
            decoder=found(modules, "decoder", ObservationDecoder, section="components"),
            reward_head=found(modules, "reward_head", ScalarHead, section="components"),
            continue_head=found(modules, "continue_head", BinaryHead, section="components"),
            return_scale=found(modules, "return_scale", ReturnScale, section="components"),
            actor=found(modules, "actor", ActionHead, section="controller"),
            critic=found(modules, "critic", Critic, section="controller"),
        )

    def learning_links(self, *, action_key: str = "action", image_keys: Sequence[str] | None) -> list[Link]:
        """What the optimiser trains, sorted by the published names."""
        links = [
            *names.encoder_links(self.encoder),
            *names.rssm_links(self.rssm),
            *names.decoder_links(self.decoder, image_keys=image_keys),
            *names.scalar_links("rew", self.reward_head),
            *names.continue_links(self.continue_head),
            *names.actor_links(self.actor, action_key=action_key),
            *names.scalar_links("val", self.critic.online),
        ]
        return sorted(links, key=lambda link: link.name)

    def memory_links(self) -> list[Link]:
        """What an update changes without a gradient."""
        return names.memory_links(self.critic, self.return_scale)
