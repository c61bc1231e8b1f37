"""The operands of benchmarks: what is read twice would come from the L2 cache."""

import importlib.util
import pathlib

import pytest

pytest.importorskip("torch")
ANCHOR = pathlib.Path(__file__).parents[1] / "bench" / "anchor.py"


@pytest.fixture(scope="module")
def anchor():
    spec = importlib.util.spec_from_file_location("anchor", ANCHOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lengths", [[64], [1, 64, 65, 4000], [8192 + 7 * i for i in range(64)]])
def test_every_page_belongs_to_one_place_of_one_sequence(anchor, lengths):
    table, pages = anchor.block_table(lengths, 64)
    used = [-(-length // 64) for length in lengths]
    assert {len(row) for row in table} == {max(used)}
    read = [page for row, count in zip(table, used) for page in row[:count]]
    assert sorted(read) == list(range(pages)), "a page twice, or never"
    assert pages < 3 or read != sorted(read), "pages in order"
