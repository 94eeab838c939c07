"""The smallest workflow: act at random, learn nothing. A baseline score, or a first dataset."""

from __future__ import annotations

from functools import partial

from reverie.types import Policy
from reverie.workflows.base import WorldModelWorkflow
from reverie.workflows.context import WorkflowContext


class RandomPolicyWorkflow(WorldModelWorkflow):
    def initialize(self, context: WorkflowContext) -> None:
        super().initialize(context)
        self._policies = {
            name: context.controllers.find(name, partial)(rngs=self._acting_rngs()) for name in context.controllers
        }

    def policy(self, controller: str | None) -> Policy:
        name = controller or "random"
        self._context.controllers.find(name, partial)  # an unknown name is refused with a sentence
        return self._policies[name]
