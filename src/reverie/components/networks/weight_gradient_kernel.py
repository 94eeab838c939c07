"""The weights' gradient of a convolution that keeps height and width, as one product of matrices. In Triton.

Terms are the numbers that meet one pixel of the result: row and column of the weight, then channels of the picture.
The product is [terms, pixels] times [pixels, channels of the result]. Its left side is never written down: what a
term is at a pixel lies in the picture, that many rows and columns away, and is zero outside of it.

Sizes: ``I`` and ``O`` channels of picture and result, a weight of ``SIZE`` by ``SIZE``. A program owns ``BM`` terms and
``BN`` and ``MORE`` channels of the result (widths are powers of two, so 192 are 128 and 64), and reads ``BK`` pixels at
a time, ``TURNS`` times.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import constexpr, tensor, tl


@triton.jit
def weight_gradient_kernel(
    pictures: tensor,
    gradient: tensor,
    parts: tensor,
    count: tensor,
    HEIGHT: constexpr,
    WIDTH: constexpr,
    I: constexpr,  # noqa: E741
    O: constexpr,  # noqa: E741
    SIZE: constexpr,
    BM: constexpr,
    BN: constexpr,
    MORE: constexpr,
    BK: constexpr,
    TURNS: constexpr,
) -> None:
    """Of ``TURNS`` times ``BK`` pixels, the share of every weight: ``parts`` [splits, SIZE, SIZE, I, O]."""
    # Programs that run at one time read the same pixels, so that most of these come from the cache.
    columns = triton.cdiv(O, BN + MORE)
    tiles = triton.cdiv(SIZE * SIZE * I, BM) * columns
    split, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    terms = tile // columns * BM + tl.arange(0, BM)
    cols = tile % columns * (BN + MORE) + tl.arange(0, BN)
    down, right = _away(terms, HEIGHT, I, SIZE)
    k = tl.arange(0, BK)
    away = ((down * WIDTH + right) * I + terms % I)[:, None] + (k * I)[None, :]
    found = tl.zeros((BM, BN), tl.float32)
    # There is no width of zero; of one nothing is left behind when it is compiled.
    more_cols = tile % columns * (BN + MORE) + BN + tl.arange(0, MORE + (MORE == 0))
    more = tl.zeros((BM, MORE + (MORE == 0)), tl.float32)
    for turn in range(TURNS):
        start = (split * TURNS + turn) * BK
        inside = _inside(start + k, down, right, count, HEIGHT, WIDTH, SIZE)
        far = start.to(tl.int64)  # a picture may have more numbers than an integer of 32 bits counts
        x = tl.load(pictures + far * I + away, mask=inside, other=0.0)
        slope = _slopes(gradient + far * O, start, k, cols, count, O)
        found = tl.dot(x, slope, found, input_precision="ieee")
        if MORE > 0:
            slope = _slopes(gradient + far * O, start, k, more_cols, count, O)
            more = tl.dot(x, slope, more, input_precision="ieee")
    parts += split.to(tl.int64) * (SIZE * SIZE * I * O)
    mask = (terms < SIZE * SIZE * I)[:, None]
    tl.store(parts + (terms * O)[:, None] + cols[None, :], found, mask=mask & (cols < O)[None, :])
    if MORE > 0:
        tl.store(parts + (terms * O)[:, None] + more_cols[None, :], more, mask=mask & (more_cols < O)[None, :])


@triton.jit
def _away(terms: tensor, HEIGHT: constexpr, I: constexpr, SIZE: constexpr) -> tuple[tensor, tensor]:  # noqa: E741
    """Rows and columns from a pixel of the result to the pixel of the picture that a term reads."""
    place = terms // I
    # What only fills up a tile lies below every picture.
    down = tl.where(place < SIZE * SIZE, place // SIZE - SIZE // 2, HEIGHT + SIZE)
    return down, place % SIZE - SIZE // 2


@triton.jit
def _inside(
    pixels: tensor,
    down: tensor,
    right: tensor,
    count: tensor,
    HEIGHT: constexpr,
    WIDTH: constexpr,
    SIZE: constexpr,
) -> tensor:
    """[terms, pixels]: whether there is something to read, in the same picture."""
    row = tl.where(pixels < count, pixels // WIDTH % HEIGHT, -2 * (HEIGHT + SIZE))[None, :] + down[:, None]
    column = (pixels % WIDTH)[None, :] + right[:, None]
    return (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)


@triton.jit
def _slopes(gradient: tensor, start: tensor, k: tensor, cols: tensor, count: tensor, O: constexpr) -> tensor:  # noqa: E741
    mask = (start + k < count)[:, None] & (cols < O)[None, :]
    return tl.load(gradient + (k * O)[:, None] + cols[None, :], mask=mask, other=0.0)
