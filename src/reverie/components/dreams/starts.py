"""Where dreams begin: latents of first observations, kept while the rows of a run are encoded."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from reverie.components.representation_learners.conv_vae import sampled


class DreamStarts(nn.Module):
    """A ring of the ``capacity`` newest first observations, as mean and log variance.

    As long as no first observation was among the rows, it holds some of the others.
    """

    mean: Tensor
    log_variance: Tensor
    count: Tensor

    def __init__(self, *, latent_dim: int, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        # The last place takes what is not kept, so that nothing has to be asked of the device.
        self.register_buffer("mean", torch.zeros(capacity + 1, latent_dim))
        self.register_buffer("log_variance", torch.zeros(capacity + 1, latent_dim))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def keep(self, mean_ND: Tensor, log_variance_ND: Tensor, is_first_N: Tensor) -> None:
        place = (self.count + is_first_N.cumsum(0) - 1) % self._capacity
        place = torch.where(is_first_N, place, self._capacity)
        is_empty = self.count == 0
        for kept, new in ((self.mean, mean_ND), (self.log_variance, log_variance_ND)):
            repeated = new[torch.arange(len(kept), device=new.device) % len(new)]
            kept.copy_(torch.where(is_empty, repeated, kept))
            kept[place] = new
        self.count.add_(is_first_N.sum())

    def drawn(self, number: int, rng: Generator) -> Tensor:
        """Latents [number, latent_dim] of uniformly drawn starts."""
        device = self.mean.device
        known = torch.where(self.count == 0, self._capacity, self.count.clamp(max=self._capacity))
        index = (torch.rand(number, dtype=torch.float64, device=device, generator=rng) * known).long()
        noise = torch.randn(number, self.mean.shape[1], device=device, generator=rng)
        return sampled(self.mean[index], self.log_variance[index], noise)
