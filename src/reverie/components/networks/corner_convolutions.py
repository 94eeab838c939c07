"""Convolutions beside a halving or a doubling of the picture, rewritten as one convolution of the small map.

A pixel of the small map stands for a square of two by two pixels of the large one, its corners. The same function, so
``images.py`` says what is computed and this says how: less memory is moved, and channels are no longer few.

Letters beside the usual ones: Q is the four corners row by row, E corners and channels together, V and U row and column
inside a square, D the squares in a row that a kernel reaches.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.components.networks import weight_gradient


def doubled_then_conv(x_NHWC: Tensor, weight_OIKK: Tensor, bias_O: Tensor) -> Tensor:
    """Every pixel becomes a square of equal ones, then the convolution: [N, 2H, 2W, O]."""
    # The corners of a square are equal here, so the weights that meet one square are summed, before they are rounded.
    kernels_QOIDD = corner_kernels(weight_OIKK).sum((-3, -1))
    y_NHWE = channels_last_conv(x_NHWC, kernels_QOIDD.flatten(0, 1), bias_O.repeat(4))
    return _corners_as_pixels(y_NHWE)


def conv_then_halved(x_NHWC: Tensor, weight_OIKK: Tensor, bias_O: Tensor) -> Tensor:
    """The convolution, then the largest of every square: [N, H / 2, W / 2, O]. Height and width are even."""
    # Each corner of the input is a channel here, with its own weights, or zeros where the kernel does not reach.
    kernels_QOEDD = corner_kernels(weight_OIKK).permute(0, 1, 4, 6, 2, 3, 5).flatten(2, 4)
    y_NHWE = channels_last_conv(_corners_as_channels(x_NHWC), kernels_QOEDD.flatten(0, 1), bias_O.repeat(4))
    return _largest(y_NHWE.unflatten(-1, (4, -1)))


def channels_last_conv(x_NHWC: Tensor, weight_OIKK: Tensor, bias_O: Tensor) -> Tensor:
    """Keeps height and width. Picture and weight both lie as the fast kernels of a GPU read them."""
    if weight_gradient.pays_off(x_NHWC, weight_OIKK):
        return weight_gradient.same_conv(x_NHWC, weight_OIKK, bias_O)
    weight_OIKK = weight_OIKK.contiguous(memory_format=torch.channels_last)
    y_NCHW = F.conv2d(x_NHWC.permute(0, 3, 1, 2), weight_OIKK, bias_O, padding=weight_OIKK.shape[-1] // 2)
    return y_NCHW.permute(0, 2, 3, 1)


def corner_kernels(weight_OIKK: Tensor) -> Tensor:
    """For each corner of an output square, which weight meets which corner of which input square.

    [4, O, I, D, 2, D, 2]: the output's corner, row by row; then rows of squares and rows inside a square, columns of
    squares and columns inside a square. D squares, centred on the output's own, hold all that the kernel reaches.
    """
    size = weight_OIKK.shape[-1]
    reach = size // 2
    squares = 2 * ((reach + 1) // 2) + 1

    def margins(corner: int) -> tuple[int, int]:
        """Zeros before and behind the kernel, along one axis of these squares."""
        before = squares - 1 - reach + corner  # the output's square begins at pixel `squares` - 1
        return before, 2 * squares - size - before

    corners = [(row, column) for row in (0, 1) for column in (0, 1)]
    padded = torch.stack([F.pad(weight_OIKK, (*margins(column), *margins(row))) for row, column in corners])
    return padded.unflatten(-1, (squares, 2)).unflatten(-3, (squares, 2))


def _corners_as_channels(x_NHWC: Tensor) -> Tensor:
    x_NHVWUC = x_NHWC.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
    return x_NHVWUC.transpose(2, 3).flatten(3)


def _corners_as_pixels(x_NHWE: Tensor) -> Tensor:
    x_NHWVUC = x_NHWE.unflatten(-1, (2, 2, -1))
    return x_NHWVUC.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _largest(y_NHWQO: Tensor) -> Tensor:
    """As ``max_pool2d``: of equal ones the first gets the gradient, and what is not a number stays."""
    found, *others = y_NHWQO.unbind(-2)
    for other in others:
        found = torch.where((other > found) | other.isnan(), other, found)
    return found
