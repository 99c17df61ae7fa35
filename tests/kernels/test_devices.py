"""The torch operations make every tensor where their inputs are, whatever torch's default device is."""

from __future__ import annotations

import pytest
import torch

from epd_kernels.dispatch import TORCH
from epd_kernels.formats.reference import BFLOAT16, INDEX, MAIN, WINDOW, Codec
from epd_kernels.paged import Paged
from tests.kernels.cases import SMALL, Case, cases

CASES = tuple(cases(SMALL))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_result_is_where_the_inputs_are(case: Case) -> None:
    # Tensors of the meta device have no values: one among the others would be an error, or be seen in the result.
    with torch.device("meta"):
        actual = case.run(TORCH)
    assert {tensor.device.type for tensor in actual} == {"cpu"}


@pytest.mark.parametrize("codec", [WINDOW, MAIN, INDEX, BFLOAT16], ids=lambda codec: codec.name)
def test_rows_that_are_all_absent(codec: Codec) -> None:
    pool = Paged(torch.zeros(2, 4 * codec.width(32), dtype=torch.uint8), 4, 32, codec)
    slots = torch.tensor([-1, -1])
    with torch.device("meta"):
        actual = TORCH.unpack(pool, slots, torch.float32)
    assert torch.equal(actual, torch.zeros(2, 32))
